"""Decisions that need to run the model."""
