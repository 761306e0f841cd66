"""What a run did, for people: one HTML page, and figures for papers."""
