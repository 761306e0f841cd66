"""Files: written whole or not at all, read as data."""
