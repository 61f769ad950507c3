"""What the user is told of a stack that is ready."""

from __future__ import annotations

import json
import shlex
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from launcher.console import StackConsole
from launcher.packaging.triton_runtime import TritonRuntime
from launcher.stack.announcement import announce
from launcher.stack.triton_door import SocketDoor
from launcher.stack.triton_server import TritonServer


def recorded() -> tuple[StackConsole, StringIO]:
    output = StringIO()
    console = Console(file=output, force_terminal=False, highlight=False, width=60)
    return StackConsole(console, console), output


def test_the_example_can_be_pasted_into_a_shell() -> None:
    console, output = recorded()
    runtime = TritonRuntime(Path("tritonserver"), Path("backends"), Path("pythonpath"))
    triton = TritonServer(runtime, (), "prefix", SocketDoor(Path("/run/triton"), 1), metrics_port=20002)
    announce(
        console,
        "http://127.0.0.1:8080",
        "smollm2-135m-instruct",
        [triton],
        Path("/data/run/ab"),
        took_s=3.21,
        computes_on="GPU 0 (NVIDIA H200), bf16",
    )
    text = output.getvalue()
    (curl,) = [line for line in text.splitlines() if line.strip().startswith("curl")]
    words = shlex.split(curl)
    assert words[1] == "http://127.0.0.1:8080/v1/chat/completions"
    assert json.loads(words[-1])["model"] == "smollm2-135m-instruct"
    assert "/data/run/ab" in text
    assert "unix:/run/triton:1  (gRPC), http://127.0.0.1:20002/metrics" in text
    assert "3.2 s" in text
    assert "  computes on GPU 0 (NVIDIA H200), bf16" in text.splitlines()


@pytest.mark.parametrize("needs_key", [True, False])
def test_the_example_shows_a_key_where_one_is_needed(needs_key: bool) -> None:
    console, output = recorded()
    runtime = TritonRuntime(Path("tritonserver"), Path("backends"), Path("pythonpath"))
    triton = TritonServer(runtime, (), "prefix", SocketDoor(Path("/run/triton"), 1), metrics_port=20002)
    announce(console, "http://x", "m", [triton], Path("/logs"), 1.0, embeddings="e", needs_key=needs_key)
    text = output.getvalue()
    assert "  models   m, e (embeddings)" in text.splitlines()
    assert ("Bearer $INFLIGHT_API_KEY" in text) == needs_key
    assert ("none yet: anyone on this machine is served" in text) != needs_key


def test_the_precision_of_embeddings_is_named_where_it_was_chosen() -> None:
    console, output = recorded()
    announce(console, "http://x", "m", [], Path("/logs"), 1.0, embeddings="e", embeddings_precision="int8")
    assert "  models   m, e (embeddings, int8)" in output.getvalue().splitlines()


def test_each_of_several_triton_servers_is_named() -> None:
    console, output = recorded()
    runtime = TritonRuntime(Path("tritonserver"), Path("backends"), Path("pythonpath"))
    doors = [SocketDoor(Path("/run/triton"), number) for number in (1, 2)]
    tritons = [
        TritonServer(runtime, (), "prefix", door, 2 * door.number, number=door.number) for door in doors
    ]
    announce(console, "http://x", "m", tritons, Path("/logs"), 1.0)
    lines = output.getvalue().splitlines()
    assert "  Triton   unix:/run/triton:1  (gRPC), http://127.0.0.1:2/metrics" in lines
    assert "  and      unix:/run/triton:2  (gRPC), http://127.0.0.1:4/metrics" in lines
