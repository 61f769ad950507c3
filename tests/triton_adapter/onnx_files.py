"""A small ONNX model for tests: y = 2 x + 1, and its config.pbtxt."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
dynamic_batching { max_queue_delay_microseconds: 500 }
instance_group [ { count: 1, kind: KIND_CPU } ]
input [ { name: "x", data_type: TYPE_FP32, dims: [ -1 ] } ]
output [ { name: "y", data_type: TYPE_FP32, dims: [ -1 ] } ]
"""


def write_onnx(directory: Path, factor: float = 2.0) -> Path:
    (directory / "1").mkdir(parents=True)
    shape = ["rows", "columns"]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    numbers = {"factor": factor, "one": 1.0}
    constants = [
        numpy_helper.from_array(np.array(value, np.float32), name) for name, value in numbers.items()
    ]
    scaled = helper.make_node("Mul", ["x", "factor"], ["scaled"])
    nodes = [scaled, helper.make_node("Add", ["scaled", "one"], ["y"])]
    graph = helper.make_graph(nodes, "line", values[:1], values[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.save(model, str(directory / "1" / "model.onnx"))
    (directory / "config.pbtxt").write_text(CONFIG)
    return directory
