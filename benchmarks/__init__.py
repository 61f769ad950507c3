"""Measurements of the engine and of the whole stack, side by side in one run."""
