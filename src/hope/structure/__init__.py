"""Read a network: which neurons exist, who feeds them, who reads them, which blocks can go. No mathematics
here.
"""
