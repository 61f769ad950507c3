"""Any ONNX model with its config.pbtxt: what Triton's own `onnxruntime` backend does, where there is none."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from python_backend.triton_adapter import pb
from python_backend.triton_adapter.start_watch import imported
from python_backend.triton_adapter.threads import threads_of
from python_backend.wire.errors import ErrorKind, InflightError

_log = logging.getLogger("inflight.onnx")
_FILE = "model.onnx"
_STRINGS = "tensor(string)"
_CUDA, _CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


class TritonPythonModel:
    def initialize(self, args: Mapping[str, str]) -> None:
        imported()
        config = json.loads(args["model_config"])
        folder = Path(args["model_repository"]) / args["model_version"]
        is_on_gpu = args.get("model_instance_kind") == "GPU"
        threads = threads_of(pb.model_parameters(args))
        self._session = _session(folder / (config.get("default_model_filename") or _FILE), threads, is_on_gpu)
        self._has_rows = int(config.get("max_batch_size", 0)) > 0
        self._strings = {each.name for each in self._session.get_inputs() if each.type == _STRINGS}
        _check_names(config, self._session)

    def execute(self, requests: Sequence[pb.PbRequest]) -> list[Any]:
        """Requests of one shape are computed together; one that breaks the computation fails alone."""
        inputs = [self._decode(pb.arrays(request)) for request in requests]
        groups: dict[Any, list[int]] = {}
        for index, given in enumerate(inputs):
            key = _shape_of(given) if self._has_rows else index
            groups.setdefault(key, []).append(index)
        responses: list[Any] = [None] * len(requests)
        for indices in groups.values():
            for index, answer in zip(indices, self._compute([inputs[each] for each in indices]), strict=True):
                responses[index] = _respond(answer, requests[index])
        return responses

    def _compute(self, given: list[dict[str, pb.Array]]) -> list[dict[str, pb.Array] | InflightError]:
        try:
            if len(given) == 1:
                return [self._run(given[0])]
            joined = {name: np.concatenate([each[name] for each in given]) for name in given[0]}
            rows = [len(next(iter(each.values()))) for each in given]
            ends = np.cumsum(rows)
            results = self._run(joined)
            if any(values.ndim == 0 or len(values) != ends[-1] for values in results.values()):
                raise ValueError("an output has a different number of rows from the inputs")
            cuts = [slice(end - count, end) for end, count in zip(ends, rows, strict=True)]
            return [{name: values[cut] for name, values in results.items()} for cut in cuts]
        except Exception as error:
            if len(given) > 1:
                return [answer for each in given for answer in self._compute([each])]
            _log.warning("a request could not be computed: %s", error)
            said = str(error).splitlines()[0] if str(error) else type(error).__name__
            return [
                InflightError(ErrorKind.INVALID_REQUEST, f"the model cannot compute these inputs: {said}")
            ]

    def _run(self, inputs: dict[str, pb.Array]) -> dict[str, pb.Array]:
        names = [each.name for each in self._session.get_outputs()]
        return dict(zip(names, map(np.asarray, self._session.run(names, inputs)), strict=True))

    def _decode(self, inputs: Mapping[str, pb.Array]) -> dict[str, pb.Array]:
        """Triton has bytes where ONNX has texts."""
        decode = np.frompyfunc(lambda value: value.decode() if isinstance(value, bytes) else value, 1, 1)
        return {name: decode(values) if name in self._strings else values for name, values in inputs.items()}


def _session(path: Path, threads: int, is_on_gpu: bool) -> onnxruntime.InferenceSession:
    available = onnxruntime.get_available_providers()
    if is_on_gpu and _CUDA not in available:
        what = "KIND_GPU needs the package onnxruntime-gpu"
        raise InflightError(ErrorKind.INVALID_REQUEST, f"{what}; available here: {', '.join(available)}")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.force_spinning_stop", "1")
    try:
        return onnxruntime.InferenceSession(str(path), options, [_CUDA, _CPU] if is_on_gpu else [_CPU])
    except Exception as error:  # the library has a class of its own for each of a dozen reasons
        raise InflightError(ErrorKind.INVALID_REQUEST, f"{path} cannot be loaded: {error}") from error


def _check_names(config: Mapping[str, Any], session: onnxruntime.InferenceSession) -> None:
    for what, found in (("input", session.get_inputs()), ("output", session.get_outputs())):
        told = {each["name"] for each in config.get(what, [])}
        names = {each.name for each in found}
        if (told != names) if what == "input" else not told <= names:
            raise InflightError(
                ErrorKind.INVALID_REQUEST,
                f"config.pbtxt: the {what}s are {', '.join(sorted(told))}; the model's own are "
                f"{', '.join(sorted(names))}",
            )


def _shape_of(inputs: Mapping[str, pb.Array]) -> Any:
    """Of one row, by which requests go together."""
    return tuple(sorted((name, values.shape[1:]) for name, values in inputs.items()))


def _respond(answer: dict[str, pb.Array] | InflightError, request: pb.PbRequest) -> Any:
    if isinstance(answer, InflightError):
        return pb.utils().InferenceResponse(output_tensors=[], error=pb.error(answer))
    wanted = set(request.requested_output_names())
    shown = {name: values for name, values in answer.items() if name in wanted}
    tensors = [pb.tensor(name, values, _kind(values)) for name, values in shown.items()]
    return pb.utils().InferenceResponse(output_tensors=tensors)


def _kind(values: pb.Array) -> Any:
    return np.object_ if values.dtype.kind in "OUS" else values.dtype
