"""Reports of a run: one HTML page, and figures for papers."""
