"""What each layer's signals look like, from BN numbers alone. Tensors only: no modules."""
