"""Text to token ids."""

from python_backend.triton_adapter.preprocessing import TritonPythonModel

__all__ = ["TritonPythonModel"]
