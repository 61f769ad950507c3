"""Releases of a model: which of them answers a request, and whether a new one may take over."""
