"""Checkpoints: a model's configuration and tensors, from a Hugging Face directory or a GGUF file."""

from python_backend.engine.checkpoint.checkpoint import Checkpoint, LoadProgress
from python_backend.engine.checkpoint.source import TensorStore, Weights, unusable

__all__ = ["Checkpoint", "LoadProgress", "TensorStore", "Weights", "unusable"]
