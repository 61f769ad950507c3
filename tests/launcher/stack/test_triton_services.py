"""Triton servers as services: how long a stop may take, and a load."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from rich.console import Console

from launcher.console import StackConsole
from launcher.packaging.triton_runtime import TritonRuntime
from launcher.stack.processes import ChildProcess
from launcher.stack.runs import Run
from launcher.stack.supervisor import Service
from launcher.stack.triton_door import SocketDoor
from launcher.stack.triton_server import TritonServer
from launcher.stack.triton_services import (
    LOAD_TIMEOUT_S,
    UNLOAD_TIMEOUT_S,
    VAIN_TIMEOUT_S,
    TritonServices,
)
from python_backend.host.cores import SERVERS_HERE


def service(tmp_path: Path, library_dir: Path | None, weights_bytes: int = 0) -> Service:
    runtime = TritonRuntime(Path("tritonserver"), Path(), library_dir)
    triton = TritonServer(runtime, (), "", SocketDoor(tmp_path / "triton", 1), 8002)
    run = Run("abc", tmp_path)
    making = TritonServices(
        run, StackConsole(Console(quiet=True)), frozenset(), 0, weights_bytes=weights_bytes
    )
    (made,) = making.of([triton], {})
    return made


@pytest.mark.parametrize(
    ("library_dir", "wanted_s"),
    [(Path("/lib"), VAIN_TIMEOUT_S), (None, UNLOAD_TIMEOUT_S)],
    ids=["of the wheel", "installed by others"],
)
def test_only_a_triton_that_may_let_streams_finish_is_waited_for(
    library_dir: Path | None, wanted_s: float, tmp_path: Path
) -> None:
    assert service(tmp_path, library_dir).longest_stop_s() == wanted_s


@pytest.mark.parametrize(("gpus", "told"), [(0, {"2"}), (1, {None})])
def test_servers_that_compute_on_cpus_are_told_how_many_share_the_machine(
    gpus: int, told: set[str | None], tmp_path: Path
) -> None:
    environments: list[Mapping[str, str]] = []

    class Remembering(ChildProcess):
        def __init__(self, command: list[str], environment: Mapping[str, str], log_path: Path) -> None:
            environments.append(environment)
            super().__init__(command, environment, log_path)

    runtime = TritonRuntime(Path("tritonserver"), Path(), None)
    tritons = [
        TritonServer(runtime, (), "", SocketDoor(tmp_path / str(number), 1), 8002 + number, number=number)
        for number in range(2)
    ]
    console = StackConsole(Console(quiet=True))
    TritonServices(Run("abc", tmp_path), console, frozenset(), gpus, Remembering).of(tritons, {})
    assert {environment.get(SERVERS_HERE) for environment in environments} == told


def test_larger_weights_may_take_longer_to_load(tmp_path: Path) -> None:
    assert service(tmp_path, None).start_timeout_s == LOAD_TIMEOUT_S
    assert service(tmp_path, None, 16 * 10**9).start_timeout_s == LOAD_TIMEOUT_S + 320
