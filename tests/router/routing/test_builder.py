from __future__ import annotations

import json
import time
from pathlib import Path
from typing import cast

import pytest
from tritonclient.grpc import service_pb2

from python_backend.wire.errors import InflightError
from router.core.embedding import EmbeddingCall, ServedEmbedder
from router.core.manifest import Kind, Manifest
from router.routing.builder import Builder
from router.routing.models import ServedTensors
from router.routing.replicas import FleetSettings
from tests.fakes.fleet import fleet_of
from tests.waiting import soon

CONFIG = """
name: "doubled.1"
backend: "python"
input [ { name: "x", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "y", data_type: TYPE_FP32, dims: [ 1 ] } ]
"""


@pytest.mark.parametrize("kind", [Kind.EMBEDDINGS, Kind.TENSORS])
async def test_models_of_every_kind_wait_for_a_replica_as_long_as_the_settings_allow(
    kind: Kind, tmp_path: Path
) -> None:
    (tmp_path / "doubled.1").mkdir()
    (tmp_path / "doubled.1" / "config.pbtxt").write_text(CONFIG)
    limits = {"hidden_size": 4, "vocab_size": 10, "max_position_embeddings": 16}
    (tmp_path / "config.json").write_text(json.dumps(limits))
    manifest = Manifest("doubled", 1, kind, ("doubled.1",), checkpoint_dir=str(tmp_path))
    replicas, _ = fleet_of(lambda request: [], manifest=manifest)
    served = Builder(tmp_path, FleetSettings(revive_wait_s=0.01)).prepare(manifest)(replicas)
    replicas.replicas[0].mark_down("a process died", time.monotonic(), reviving=True)
    if kind is Kind.EMBEDDINGS:
        asking = cast("ServedEmbedder", served).embedder.embed(EmbeddingCall(["a"], 4, 3), "embd-1", "local")
    else:
        asking = cast("ServedTensors", served).tensors.infer(service_pb2.ModelInferRequest(id="1"), 1.0)
    with pytest.raises(InflightError, match="cannot answer"):
        await soon(asking)
