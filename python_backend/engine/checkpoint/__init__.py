"""Checkpoints: a model's configuration and tensors, from a Hugging Face directory or a GGUF file."""

from python_backend.engine.checkpoint.checkpoint import Checkpoint, LoadProgress
from python_backend.engine.checkpoint.grouped import Grouped, Matrix, Numbers, Weights
from python_backend.engine.checkpoint.source import TensorStore, unusable

__all__ = ["Checkpoint", "Grouped", "LoadProgress", "Matrix", "Numbers", "TensorStore", "Weights", "unusable"]
