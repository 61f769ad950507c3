"""Stands in for Triton's `onnxruntime` backend, which the server from PyPI does not have."""

from python_backend.triton_adapter.onnx_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
