"""What the user is shown."""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from launcher.console import LastingConsole, StackConsole, own_command
from launcher.stack.triton_runtime import TritonRuntime
from launcher.stack.triton_server import TritonServer


def consoles(terminal: bool) -> tuple[StackConsole, StringIO]:
    output = StringIO()
    console = Console(file=output, force_terminal=terminal, highlight=False, width=60)
    return StackConsole(console, console), output


def test_without_a_terminal_each_stage_is_two_plain_lines() -> None:
    console, output = consoles(terminal=False)
    with console.stage("Downloading", total_bytes=100) as stage:
        stage.advance_to(50)
    assert output.getvalue() == "Downloading ...\nDownloading: 0.0 s\n"


def test_on_a_terminal_a_stage_has_a_bar() -> None:
    console, output = consoles(terminal=True)
    with console.stage("Downloading", total_bytes=100) as stage:
        stage.advance_to(50)
    assert "50%" in output.getvalue()


class DeadTerminal(StringIO):
    def write(self, text: str) -> int:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("terminal", [False, True])
def test_work_goes_on_when_nobody_reads_the_output_any_more(terminal: bool) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe:
        for file in (pipe, DeadTerminal()):
            silent = LastingConsole(file=file, force_terminal=terminal)
            console, done = StackConsole(silent, silent), []
            with console.stage("Stopping"):
                done.append("drained")
            console.problem("it died", ["why"])
            assert done == ["drained"]


def test_text_that_looks_like_markup_is_shown_as_it_is() -> None:
    console, output = consoles(terminal=False)
    console.problem("died [red]", ["E1 [/bold] x"])
    assert output.getvalue() == "died [red]\n  E1 [/bold] x\n"


def test_the_hint_works_whether_or_not_the_environment_is_activated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent))
    assert own_command() == "inflight"
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.chdir(Path(sys.executable).parent.parent)
    assert own_command() == "bin/inflight"


def test_the_example_can_be_pasted_into_a_shell() -> None:
    console, output = consoles(terminal=False)
    runtime = TritonRuntime(Path("tritonserver"), Path("backends"), Path("pythonpath"))
    triton = TritonServer(runtime, (), "prefix", grpc_port=20001, metrics_port=20002)
    console.announce(
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
    assert "127.0.0.1:20001  (gRPC), http://127.0.0.1:20002/metrics" in text
    assert "3.2 s" in text
    assert "  computes on GPU 0 (NVIDIA H200), bf16" in text.splitlines()


@pytest.mark.parametrize("needs_key", [True, False])
def test_the_example_shows_a_key_where_one_is_needed(needs_key: bool) -> None:
    console, output = consoles(terminal=False)
    runtime = TritonRuntime(Path("tritonserver"), Path("backends"), Path("pythonpath"))
    triton = TritonServer(runtime, (), "prefix", grpc_port=20001, metrics_port=20002)
    console.announce("http://x", "m", [triton], Path("/logs"), 1.0, embeddings="e", needs_key=needs_key)
    text = output.getvalue()
    assert "  models   m, e (embeddings)" in text.splitlines()
    assert ("Bearer $INFLIGHT_API_KEY" in text) == needs_key
    assert ("none yet: anyone on this machine is served" in text) != needs_key


def test_each_of_several_triton_servers_is_named() -> None:
    console, output = consoles(terminal=False)
    runtime = TritonRuntime(Path("tritonserver"), Path("backends"), Path("pythonpath"))
    tritons = [TritonServer(runtime, (), "prefix", port, port + 1, number=port) for port in (1, 3)]
    console.announce("http://x", "m", tritons, Path("/logs"), 1.0)
    lines = output.getvalue().splitlines()
    assert "  Triton   127.0.0.1:1  (gRPC), http://127.0.0.1:2/metrics" in lines
    assert "  and      127.0.0.1:3  (gRPC), http://127.0.0.1:4/metrics" in lines
