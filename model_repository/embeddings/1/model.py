"""Texts to vectors."""

from python_backend.triton_adapter.embeddings import TritonPythonModel

__all__ = ["TritonPythonModel"]
