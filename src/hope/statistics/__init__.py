"""Moments of signals: from BN numbers, propagated, or measured."""
