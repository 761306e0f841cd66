"""Benchmarks: networks, images, and measurements of accuracy and speed."""
