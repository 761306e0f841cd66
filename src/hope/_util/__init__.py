"""Small helpers without knowledge of networks."""
