"""A Triton model as a user would bring one; which backend it needs, Triton tells by its file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

DOUBLER_CONFIG = """
name: "doubler"
max_batch_size: 8
input [ { name: "x", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "y", data_type: TYPE_FP32, dims: [ 1 ] } ]
"""
DOUBLER = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "x")) for request in requests]

    def answer(self, x):
        y = (x.as_numpy() * FACTOR).astype(np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", y)])
"""


def write_multiplier(directory: Path, factors: Mapping[int, int]) -> Path:
    """A user's Triton model whose versions multiply by different numbers."""
    for version, factor in factors.items():
        (directory / str(version)).mkdir(parents=True)
        (directory / str(version) / "model.py").write_text(DOUBLER.replace("FACTOR", str(factor)))
    (directory / "config.pbtxt").write_text(DOUBLER_CONFIG)
    return directory
