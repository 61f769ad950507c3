"""Encoders on a GPU, by torch."""
