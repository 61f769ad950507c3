"""An ONNX graph under construction, and the session that computes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]
# Where two operator sets have an operator of one name, ONNX's own is meant.
_OPSET, _MICROSOFT = 20, "com.microsoft"
_IR_VERSION = 10
_SMALL_BYTES = 1024


class Graph:
    """Nodes in the order in which they are added; each returns the name of its result."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, Array] = {}
        self._inputs: list[onnx.ValueInfoProto] = []
        self._numbers = count()

    def input(self, name: str, rank: int, is_float: bool = False) -> str:
        kind = TensorProto.FLOAT if is_float else TensorProto.INT64
        shape = [f"{name}_{axis}" for axis in range(rank)]
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def weight(self, values: Array) -> str:
        """Kept outside of the graph, which could not hold more than 2 GB."""
        name = f"w{next(self._numbers)}"
        self._weights[name] = np.asarray(values, order="C")
        return name

    def add(self, kind: str, *inputs: str, **attributes: Any) -> str:
        return self.add_many(kind, 1, *inputs, **attributes)[0]

    def add_many(self, kind: str, results: int, *inputs: str, **attributes: Any) -> list[str]:
        return self._add(kind, "", results, inputs, attributes)

    def fused(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """An operator of onnxruntime's own set, which does at once what takes several of ONNX's."""
        return self._add(kind, _MICROSOFT, 1, inputs, attributes)[0]

    def session(self, output: str, threads: int) -> Session:
        result = helper.make_tensor_value_info(output, TensorProto.FLOAT, None)
        initializers = [_declared(name, values) for name, values in self._weights.items()]
        graph = helper.make_graph(self._nodes, "encoder", self._inputs, [result], initializers)
        opsets = [helper.make_opsetid("", _OPSET), helper.make_opsetid(_MICROSOFT, 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=_IR_VERSION)
        return Session(model.SerializeToString(), self._weights, threads)

    def _add(
        self, kind: str, domain: str, results: int, inputs: Sequence[str], attributes: Mapping[str, Any]
    ) -> list[str]:
        names = [f"v{next(self._numbers)}" for _ in range(results)]
        self._nodes.append(helper.make_node(kind, list(inputs), names, domain=domain, **attributes))
        return names


class Session:
    """Thread-safe; `threads` of its own work on each call."""

    def __init__(self, model: bytes, weights: Mapping[str, Array], threads: int) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.enable_mem_pattern = False  # shapes differ from call to call
        options.log_severity_level = 3
        # What is worth fusing is fused; onnxruntime's own idea of an added and normalized sum is three times
        # as slow as adding and normalizing.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        # Between two calls nobody spins: the engine beside it needs the cores.
        options.add_session_config_entry("session.force_spinning_stop", "1")
        large = {name: each for name, each in weights.items() if each.nbytes > _SMALL_BYTES}
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(each) for each in large.values()]
        options.add_external_initializers(list(large), values)
        self._session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
        # onnxruntime has weights of matrices in an order of its own by now. What it was given would stay in
        # memory beside them for the sake of the options alone, which nobody reads again.
        self._session._sess_options = onnxruntime.SessionOptions()
        self.inputs = frozenset(each.name for each in self._session.get_inputs())

    def run(self, inputs: Mapping[str, Array]) -> Array:
        fed = {name: values for name, values in inputs.items() if name in self.inputs}
        (result,) = self._session.run(None, fed)
        return result  # type: ignore[no-any-return]


def _declared(name: str, values: Array) -> onnx.TensorProto:
    """That there is such a tensor; the values of a large one come with the session."""
    if values.nbytes <= _SMALL_BYTES:
        return numpy_helper.from_array(values, name)
    kind = helper.np_dtype_to_tensor_dtype(values.dtype)
    tensor = TensorProto(name=name, data_type=kind, dims=values.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "memory"), ("offset", "0"), ("length", str(values.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor
