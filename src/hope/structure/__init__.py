"""The structure of a network: neurons, their writers and readers, and evictable blocks. No
mathematics here.
"""
