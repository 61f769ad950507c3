"""Kernels in triton-lang; each file holds a kernel and the function that launches it."""
