"""Several Triton servers and the GPUs of a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.placement import gpus_of_one
from launcher.stack.gpus import VISIBLE, server_count, share_of_gpus


@pytest.fixture
def devices(tmp_path: Path) -> Path:
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    return tmp_path


def test_servers_take_the_gpus_in_turn(devices: Path) -> None:
    assert [share_of_gpus(number, {}, devices)[VISIBLE] for number in range(3)] == ["0", "1", "0"]


def test_servers_take_gpus_from_the_users_visible_devices(devices: Path) -> None:
    base = {VISIBLE: "GPU-a, GPU-b,GPU-c"}
    assert [share_of_gpus(number, base, devices)[VISIBLE] for number in (1, 2, 3)] == [
        "GPU-b",
        "GPU-c",
        "GPU-a",
    ]


@pytest.mark.parametrize(
    ("visible", "engine", "servers"),
    [
        ("0,1,2", {}, 3),
        ("0,1,2", {"tensor_parallel_size": "2"}, 1),
        ("0,1,2", {"gpu_device_ids": "0,1"}, 1),
        ("", {}, 1),
    ],
)
def test_all_servers_are_as_many_as_have_gpus_of_their_own(
    visible: str, engine: dict[str, str], servers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VISIBLE, visible)
    assert server_count("all", engine) == servers
    assert server_count(2, engine) == 2


@pytest.mark.parametrize("visible", ["", "3", "-1"])
def test_one_gpu_or_none_is_shared_by_all_servers(visible: str, devices: Path) -> None:
    assert share_of_gpus(1, {VISIBLE: visible}, devices) == {}


def test_without_a_gpu_no_environment_is_set(tmp_path: Path) -> None:
    assert share_of_gpus(0, {}, tmp_path) == {}


def test_servers_take_as_many_gpus_as_their_engines_need(devices: Path) -> None:
    base, size = {VISIBLE: "0,1,2,3,4"}, gpus_of_one({"tensor_parallel_size": "2"})
    assert [share_of_gpus(number, base, devices, size)[VISIBLE] for number in range(3)] == [
        "0,1",
        "2,3",
        "0,1",
    ]
    assert share_of_gpus(0, base, devices, 4) == {}  # one server, which takes what it needs
    assert gpus_of_one({}) == 1
