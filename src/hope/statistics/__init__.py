"""What signals look like: from BN numbers, propagated, or measured."""
