"""Distil a small network towards its original, without labels."""
