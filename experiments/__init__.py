"""What makes the figures of this repository, with the results. Not a part of the package."""
