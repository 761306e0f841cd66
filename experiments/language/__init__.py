"""Transformers made smaller: absorption against its peers, in one harness."""
