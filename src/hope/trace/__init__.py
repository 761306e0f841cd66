"""A network as the one description that everything else reads."""
