"""What vLLM is started with."""

from __future__ import annotations

import pytest

from python_backend.engine.runtimes.hosted.checkpoint import CheckpointFacts
from python_backend.engine.runtimes.vllm.load import engine_arguments
from python_backend.wire.errors import InflightError
from python_backend.wire.parameters import EngineParameters

CHECKPOINT = CheckpointFacts(1000, 2048, (2,), None)


def test_keys_and_values_are_kept_in_the_requested_precision() -> None:
    plain = EngineParameters("inflight_fused_batching", "/model")
    fp8 = EngineParameters("inflight_fused_batching", "/model", inflight_kv_precision="fp8")
    assert engine_arguments(plain, CHECKPOINT, "cuda")["kv_cache_dtype"] == "auto"
    assert engine_arguments(fp8, CHECKPOINT, "cuda")["kv_cache_dtype"] == "fp8"
    with pytest.raises(InflightError, match=r"inflight_kv_precision is 'fp8'; allowed: auto \(this machine"):
        engine_arguments(fp8, CHECKPOINT, "cpu")
