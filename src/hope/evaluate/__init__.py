"""Whatever must run the model to decide."""
