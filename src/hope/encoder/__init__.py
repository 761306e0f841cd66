"""The greedy loop over layer states: it runs without the model."""
