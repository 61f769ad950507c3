"""Stands in for NVIDIA's `tensorrtllm` backend wherever its library is not installed."""

from python_backend.triton_adapter.tensorrt_llm import TritonPythonModel

__all__ = ["TritonPythonModel"]
