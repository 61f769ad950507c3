"""Whether a second copy of a model fits beside the first."""

from __future__ import annotations

import os

import pytest

from router.control.tuning import memory_fit
from router.control.tuning.delay_change import Batched, Queueing
from router.control.tuning.memory_fit import copy_bytes, judge, misfit, model_of, resident_bytes
from router.core.manifest import FileMark, Kind, Manifest, Needs

MIB = 1 << 20
ONE = Manifest("m", 1, Kind.TENSORS, ("m.1",), files=(FileMark("m.1/1/model.py", 10 * MIB, ""),))
QUEUEING = Queueing(0)


def batched(*, is_on_gpu: bool = False) -> Batched:
    return Batched(64, QUEUEING, QUEUEING, False, is_on_gpu, 1)


def test_the_memory_of_a_models_processes_counts_before_the_size_of_its_files() -> None:
    assert copy_bytes(ONE, "m.1", 2, 30 * MIB) == 60 * MIB
    assert copy_bytes(ONE, "m.1", 1, None) == 20 * MIB
    assert copy_bytes(ONE, "other", 1, None) is None
    with_needs = Manifest("m", 1, Kind.EMBEDDINGS, ("m.1",), needs=Needs(100 * MIB))
    assert copy_bytes(with_needs, "m.1", 1, None) == 200 * MIB


def test_a_second_copy_must_fit_with_memory_to_spare() -> None:
    assert judge(100 * MIB, 1024 * MIB) is None
    assert "1,000 MiB" in str(judge(1000 * MIB, 1024 * MIB))
    assert judge(100 * MIB, None) is None
    assert "unknown" in str(judge(1000 * MIB, None))


def test_a_second_copy_is_not_tried_on_a_gpu_or_where_its_size_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "GPU" in str(misfit(ONE, "m.1", batched(is_on_gpu=True), "127.0.0.1:1"))
    assert "unknown" in str(misfit(ONE, "unseen", batched(), "127.0.0.1:1"))
    assert misfit(ONE, "m.1", batched(), "elsewhere:1") is None
    monkeypatch.setattr(memory_fit, "available_memory_bytes", lambda: 100 * MIB)
    assert "100 MiB are free" in str(misfit(ONE, "m.1", batched(), "127.0.0.1:1"))


def test_a_processs_model_is_read_from_its_command_line() -> None:
    assert model_of(["stub", f"{os.sep}repository/m.1/1/model.py", "shm"]) == "m.1"
    assert model_of(["stub"]) == ""
    assert resident_bytes("a-model-that-nobody-has") is None
