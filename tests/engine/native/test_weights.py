"""Packed weights on disk: whole or not there, whoever else is writing or was killed doing so."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from python_backend.engine.models.decoder import (
    Activation,
    DecoderShape,
    ExpertShape,
    ExpertWeights,
    LayerWeights,
    Rope,
    Weights,
    dense,
)
from python_backend.engine.native.microkernel import Format
from python_backend.engine.native.tables import ARRAY_NAMES, Arrays
from python_backend.engine.native.weight_layouts import Packed, pack
from python_backend.engine.native.weights import expected_bytes, map_packed, packed_bytes, write_packed
from tests.engine.native.unpacked import unpack
from tests.pace import patience

SHAPE = DecoderShape(
    layers=3,
    hidden=40,
    intermediate=36,
    heads=3,
    kv_heads=1,
    head_dim=8,
    vocabulary=50,
    max_positions=64,
    norm_epsilon=1e-6,
    activation=Activation.SILU,
    query_scale=1.0,
    ropes=(Rope(np.zeros(4, np.float32)),),
    rope_of_layer=(0, 0, 0),
    windows=(None, 7, None),
)


def random_floats(*shape: int, seed: int) -> Weights:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


class SmallWeights:
    """Random weights; `before_layer` is called before each is handed out."""

    def __init__(
        self, is_tied: bool = False, before_layer: Callable[[int], object] = lambda index: None
    ) -> None:
        self.shape = SHAPE
        self._is_tied = is_tied
        self._before_layer = before_layer

    @property
    def quantized_bytes(self) -> int | None:
        return None

    def layer(self, index: int) -> LayerWeights:
        self._before_layer(index)
        return LayerWeights(
            attention_norm=random_floats(40, seed=index),
            qkv=random_floats(40, 40, seed=index + 10),
            attention_out=random_floats(40, 24, seed=index + 20),
            mlp_norm=random_floats(40, seed=index + 30),
            gate_up=random_floats(72, 40, seed=index + 40),
            down=random_floats(40, 36, seed=index + 50),
            qkv_bias=random_floats(40, seed=index + 60),
        )

    def embeddings(self) -> Weights:
        return random_floats(50, 40, seed=1)

    def head(self) -> Weights | None:
        return None if self._is_tied else random_floats(50, 40, seed=2)

    def final_norm(self) -> Weights:
        return random_floats(40, seed=3)


def assert_same(found: Arrays, expected: Arrays) -> None:
    for name, one, other in zip(ARRAY_NAMES, flat(found), flat(expected), strict=True):
        assert np.array_equal(one, other), name


def flat(arrays: Arrays) -> list[NDArray[Any]]:
    return [*arrays.attention, *arrays[1:]]


@pytest.mark.parametrize("kind", Format)
@pytest.mark.parametrize("is_tied", [False, True])
def test_written_packed_weights_are_mapped_again(kind: Format, is_tied: bool, tmp_path: Path) -> None:
    weights, reports = SmallWeights(is_tied), list[tuple[int, int]]()
    write_packed(weights, kind, tmp_path / "packed", lambda *report: reports.append(report))
    arrays = map_packed(tmp_path / "packed", SHAPE, kind)
    for index in range(SHAPE.layers):
        layer = weights.layer(index)
        np.testing.assert_array_equal(arrays.attention.qkv[index], pack(layer.qkv, kind).weights)
        assert layer.down is not None
        assert layer.qkv_bias is not None
        assert layer.mlp_norm is not None
        np.testing.assert_array_equal(arrays.down_scales[index], pack(layer.down, kind).scales)
        np.testing.assert_array_equal(arrays.attention.qkv_bias[index], layer.qkv_bias)
        np.testing.assert_array_equal(arrays.mlp_norm[index], layer.mlp_norm)
    head_kind = Format.INT8 if kind is Format.INT4 else kind
    head = weights.embeddings() if is_tied else weights.head()
    assert head is not None
    np.testing.assert_array_equal(arrays.head, pack(head, head_kind).weights)
    np.testing.assert_array_equal(arrays.embeddings, pack(weights.embeddings(), head_kind).weights)
    np.testing.assert_array_equal(arrays.attention.windows, [0, 7, 0])
    assert arrays.down_bias.shape == arrays.attention.query_norm.shape == (3, 0)
    assert reports == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert packed_bytes(tmp_path / "packed") > arrays.attention.qkv.nbytes
    assert os.listdir(tmp_path) == ["packed"]


def test_gates_and_ups_are_interleaved_by_eight(tmp_path: Path) -> None:
    weights = SmallWeights()
    write_packed(weights, Format.FP32, tmp_path / "packed")
    arrays = map_packed(tmp_path / "packed", SHAPE, Format.FP32)
    padded = unpack(
        Packed(arrays.gate_up[1], np.zeros(0, np.uint16)), Format.FP32, 2 * 64, 40
    ).matrix.reshape(8, 2, 8, 64)
    gate_up = weights.layer(1).gate_up
    assert isinstance(gate_up, np.ndarray)
    for part in range(2):
        rows = padded[:, part].reshape(64, 64)
        np.testing.assert_array_equal(rows[:36, :40], gate_up[36 * part : 36 * (part + 1)])
        assert not rows[36:].any()


def test_writing_into_mapped_arrays_leaves_the_files_alone(tmp_path: Path) -> None:
    write_packed(SmallWeights(), Format.INT8, tmp_path / "packed")
    map_packed(tmp_path / "packed", SHAPE, Format.INT8).attention.qkv[:] = 0
    assert map_packed(tmp_path / "packed", SHAPE, Format.INT8).attention.qkv.any()


def experts(seed: int) -> ExpertWeights:
    return ExpertWeights(
        random_floats(4, 40, seed=seed),
        random_floats(4, 2 * 24, 40, seed=seed + 1),
        random_floats(4, 40, 24, seed=seed + 2),
    )


class WithExperts(SmallWeights):
    """Layers of experts, but for those of the given numbers."""

    def __init__(self, *dense: int) -> None:
        super().__init__(is_tied=True)
        self.shape = replace(SHAPE, experts=ExpertShape(4, 2, 24, False))
        self._dense = dense

    def layer(self, index: int) -> LayerWeights:
        layer = super().layer(index)
        is_dense = index in self._dense
        return layer if is_dense else replace(layer, gate_up=None, down=None, experts=experts(index))


@pytest.mark.parametrize("kind", Format)
@pytest.mark.parametrize("weights", [SmallWeights(is_tied=True), WithExperts()])
def test_the_packed_size_of_matrices_is_predicted_exactly(
    weights: SmallWeights, kind: Format, tmp_path: Path
) -> None:
    write_packed(weights, kind, tmp_path / "packed")
    arrays = dict(zip(ARRAY_NAMES, flat(map_packed(tmp_path / "packed", weights.shape, kind)), strict=True))
    matrices = ("qkv", "attention_out", "gate_up", "down", "expert_gate_up", "expert_down", "head")
    found = sum(arrays[name].nbytes + arrays[f"{name}_scales"].nbytes for name in matrices)
    assert expected_bytes(weights.shape, kind) == found


def test_expert_layers_and_dense_layers_may_alternate(tmp_path: Path) -> None:
    weights = WithExperts(1)
    write_packed(weights, Format.INT8, tmp_path / "packed")
    arrays = map_packed(tmp_path / "packed", weights.shape, Format.INT8)
    np.testing.assert_array_equal(arrays.mlp_of_layer, [-1, 0, -2])
    for number, index in enumerate((0, 2)):
        router = pack(experts(index).router, Format.FP32)
        np.testing.assert_array_equal(arrays.router[number], router.weights)
        for expert in range(4):
            down = pack(dense(experts(index).down)[expert], Format.INT8)
            np.testing.assert_array_equal(arrays.expert_down[number, expert], down.weights)
            np.testing.assert_array_equal(arrays.expert_down_scales[number, expert], down.scales)
    dense_down = weights.layer(1).down
    assert dense_down is not None
    np.testing.assert_array_equal(arrays.down[0], pack(dense_down, Format.INT8).weights)


def test_a_full_disk_is_an_error_and_not_the_end_of_the_process(tmp_path: Path) -> None:
    in_a_small_disk = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=128k none "$0" && exec "$@"']
    in_a_small_disk.append(str(tmp_path))
    try:
        subprocess.run([*in_a_small_disk, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("nothing can be mounted here")
    program = f"""
from pathlib import Path
from python_backend.engine.native.microkernel import Format
from python_backend.engine.native.weights import write_packed
from tests.engine.native.test_weights import SmallWeights
try:
    write_packed(SmallWeights(), Format.FP32, Path({str(tmp_path)!r}) / "packed")
except OSError as error:
    print(error.strerror, list(Path({str(tmp_path)!r}).iterdir()))
"""
    done = subprocess.run(
        [*in_a_small_disk, sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "No space left on device []\n"


def test_a_writer_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail(index: int) -> None:
        if index == 2:
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="the disk is full"):
        write_packed(SmallWeights(before_layer=fail), Format.INT8, tmp_path / "packed")
    assert os.listdir(tmp_path) == []


def _kill_myself(index: int) -> None:
    if index == 2:
        os.kill(os.getpid(), signal.SIGKILL)


def _write_and_die(directory: Path) -> None:
    write_packed(SmallWeights(before_layer=_kill_myself), Format.INT8, directory)


def test_a_killed_writer_leaves_no_half_weights_and_blocks_no_other(tmp_path: Path) -> None:
    writer = multiprocessing.get_context("spawn").Process(target=_write_and_die, args=(tmp_path / "packed",))
    writer.start()
    writer.join(patience(60))
    assert writer.exitcode == -signal.SIGKILL
    assert not (tmp_path / "packed").exists()
    write_packed(SmallWeights(), Format.INT8, tmp_path / "packed")
    write_packed(SmallWeights(), Format.INT8, tmp_path / "another")
    assert_same(*(map_packed(tmp_path / name, SHAPE, Format.INT8) for name in ("packed", "another")))


def test_two_concurrent_writers_both_succeed(tmp_path: Path) -> None:
    """What they wrote is mapped here: numpy reads headers by `ast`, which threads of Python 3.11 disturb."""
    side_by_side = Barrier(2, timeout=patience(30))

    def write(_: int) -> None:
        weights = SmallWeights(before_layer=lambda index: side_by_side.wait())
        write_packed(weights, Format.INT4, tmp_path / "packed")

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(write, range(2)))
    assert os.listdir(tmp_path) == ["packed"]
    write_packed(SmallWeights(), Format.INT4, tmp_path / "alone")
    assert_same(*(map_packed(tmp_path / name, SHAPE, Format.INT4) for name in ("packed", "alone")))
