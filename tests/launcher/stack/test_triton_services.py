"""Triton servers as services: how long a stop may take, and a load."""

from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from launcher.console import StackConsole
from launcher.packaging.triton_runtime import TritonRuntime
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


def test_larger_weights_may_take_longer_to_load(tmp_path: Path) -> None:
    assert service(tmp_path, None).start_timeout_s == LOAD_TIMEOUT_S
    assert service(tmp_path, None, 16 * 10**9).start_timeout_s == LOAD_TIMEOUT_S + 320
