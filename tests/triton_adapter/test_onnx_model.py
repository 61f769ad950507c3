"""Any ONNX model on a stand-in stub."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from python_backend.triton_adapter.onnx_model import TritonPythonModel
from python_backend.wire.errors import InflightError
from tests.fakes.triton_stub import Request
from tests.triton_adapter.onnx_files import write_onnx

TENSORS = {"input": [{"name": "x"}], "output": [{"name": "y"}]}


def loaded(directory: Path, **more: Any) -> TritonPythonModel:
    config = {"max_batch_size": 8, "parameters": {}, **TENSORS, **more}
    kind = config.pop("kind", "CPU")
    arguments = {"model_repository": str(directory), "model_version": "1", "model_instance_kind": kind}
    model = TritonPythonModel()
    model.initialize({**arguments, "model_config": json.dumps(config)})
    return model


def asking(*rows: list[float], outputs: tuple[str, ...] = ("y",)) -> Request:
    return Request({"x": np.array(rows, np.float32)}, outputs=outputs)


def test_requests_of_one_shape_are_computed_together_and_answered_apart(tmp_path: Path) -> None:
    model = loaded(write_onnx(tmp_path / "line"))
    runs: list[int] = []
    run = model._run

    def counted(inputs: dict[str, Any]) -> Any:
        runs.append(len(inputs["x"]))
        return run(inputs)

    model._run = counted  # type: ignore[method-assign]
    answers = model.execute([asking([1, 2]), asking([3, 4], [5, 6]), asking([7.0])])
    assert [answer.outputs["y"].tolist() for answer in answers] == [[[3, 5]], [[7, 9], [11, 13]], [[15]]]
    assert runs == [3, 1]


def test_a_model_without_rows_computes_each_request_alone(tmp_path: Path) -> None:
    model = loaded(write_onnx(tmp_path / "line"), max_batch_size=0)
    answers = model.execute([asking([1.0]), asking([2.0], outputs=())])
    assert answers[0].outputs["y"].tolist() == [[3.0]]
    assert answers[1].outputs == {}


def test_a_request_that_cannot_be_computed_fails_alone(tmp_path: Path) -> None:
    model = loaded(write_onnx(tmp_path / "line"))
    wrong = Request({"x": np.array([["text"]], np.object_)}, outputs=("y",))
    good, bad = model.execute([asking([1.0]), wrong])
    assert good.outputs["y"].tolist() == [[3.0]]
    assert InflightError.from_text(bad.error.message).kind.http_status == 400
    assert "the model cannot compute these inputs" in bad.error.message


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"input": [{"name": "z"}]}, "the inputs are z; the model's own are x"),
        ({"output": [{"name": "z"}]}, "the outputs are z; the model's own are y"),
        ({"default_model_filename": "other.onnx"}, r"other\.onnx cannot be loaded"),
        ({"kind": "GPU"}, "KIND_GPU needs the package onnxruntime-gpu"),
        ({"parameters": {"threads": {"string_value": "0"}}}, "parameter threads is"),
    ],
)
def test_what_cannot_be_served_stops_the_start(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(InflightError, match=said):
        loaded(write_onnx(tmp_path / "line"), **change)
