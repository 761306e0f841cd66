"""The algebra of Gaussian signals and of pairs: tensors in, tensors out, nothing of networks."""
