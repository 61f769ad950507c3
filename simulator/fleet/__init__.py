"""Thousands of replicas in cells: the same decisions, compiled, on a model that counts every request."""
