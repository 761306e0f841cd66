"""Networks for tests and experiments, and what a cut network is held against. Not a part of the package."""
