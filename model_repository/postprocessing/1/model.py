"""Token ids to text, chunk by chunk."""

from python_backend.triton_adapter.postprocessing import TritonPythonModel

__all__ = ["TritonPythonModel"]
