"""Accuracy against size: networks × methods × budgets."""
