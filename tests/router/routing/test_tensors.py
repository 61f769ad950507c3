from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from python_backend.wire.tensors import Tensor
from router.core.manifest import Kind, Manifest
from router.routing.builder import read_config, served_tensors, tensors_of
from router.routing.models import TensorContract
from tests.fakes.tensors import FakeTensors

CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
input [
  { name: "IMAGE", data_type: TYPE_FP32, dims: [ 3, -1, -1 ] },
  { name: "TITLE", data_type: TYPE_STRING, dims: [ 1 ], optional: true }
]
output { name: "LABEL", data_type: TYPE_BF16, dims: [ -1 ] }
model_transaction_policy { decoupled: true }
dynamic_batching { }
"""


def contract(text: str) -> TensorContract:
    return tensors_of(text_format.Parse(text, model_config_pb2.ModelConfig()))


def test_a_config_describes_inputs_and_outputs() -> None:
    found = contract(CONFIG)
    assert found.inputs == {
        "IMAGE": Tensor("IMAGE", "FP32", (3, -1, -1)),
        "TITLE": Tensor("TITLE", "BYTES", (1,), optional=True),
    }
    assert found.outputs == {"LABEL": Tensor("LABEL", "BF16", (-1,))}
    assert (found.max_batch_size, found.is_decoupled) == (8, True)


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        (CONFIG.replace("dynamic_batching", "sequence_batching"), "keep state"),
        (CONFIG.partition("output")[0], "names no output"),
        (CONFIG.partition("input")[0], "names no input"),
        (CONFIG.replace("TYPE_BF16", "TYPE_INVALID"), "'LABEL': a name and a data_type"),
        (CONFIG.replace("optional: true", "is_shape_tensor: true"), "shape tensors"),
    ],
)
def test_a_config_that_no_client_could_use_is_refused(wrong: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        contract(wrong)


async def test_a_release_is_served_by_the_config_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_text(CONFIG)
    manifest = Manifest("classifier", 3, Kind.TENSORS, ("classifier.3",))
    tensors = FakeTensors(lambda request: [])
    served = served_tensors(manifest, read_config(path), tensors)
    assert (served.name, served.version, served.triton_name) == ("classifier", 3, "classifier.3")
    assert (served.max_batch_size, served.is_decoupled, list(served.inputs)) == (8, True, ["IMAGE", "TITLE"])
    assert await served.ready()
    tensors.is_ready = False
    assert not await served.ready()


@pytest.mark.parametrize("wrong", [b"max_batch_size: many", b"\xff", b"unknown: 1"])
def test_an_unreadable_config_is_reported_without_its_path(tmp_path: Path, wrong: bytes) -> None:
    path = tmp_path / "config.pbtxt"
    path.write_bytes(wrong)
    with pytest.raises(ValueError, match=r"config\.pbtxt cannot be read") as refused:
        read_config(path)
    assert str(tmp_path) not in str(refused.value)
