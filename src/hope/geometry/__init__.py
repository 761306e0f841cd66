"""Closed forms over whole layers: capacities, pair geometry, parents, costs. Tensors in, tensors out,
float64.
"""
