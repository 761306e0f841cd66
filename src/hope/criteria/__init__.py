"""The magnitude baselines: scores per neuron for the same anatomy, pruned by one global threshold."""
