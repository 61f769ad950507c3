"""Batches: many requests in one file, answered when there is room for them."""
