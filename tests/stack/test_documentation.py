"""The commands and programs of the documentation, run as they stand against a real stack."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path
from types import CodeType

import pytest

from benchmarks.stack import RunningStack

pytestmark = pytest.mark.stack

ROOT = Path(__file__).parents[2]


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


def at(stack: RunningStack, text: str) -> str:
    """The same text, with the addresses of this stack instead of the default ones."""
    addresses = {
        "http://127.0.0.1:8080": stack.url,
        "127.0.0.1:8081": stack.grpc_url,
    }
    for usual, here in addresses.items():
        text = text.replace(usual, here)
    return text


def run(command: list[str], **environment: str) -> str:
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=120, cwd=ROOT, env={**os.environ, **environment}
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_the_readmes_curl_is_answered(stack: RunningStack) -> None:
    (curl,) = (block for block in blocks("README.md", "") if block.startswith("curl"))
    assert '"role":"assistant"' in run(["bash", "-c", at(stack, curl)])


def test_the_readmes_ask_command_is_answered(stack: RunningStack) -> None:
    (block,) = (block for block in blocks("README.md", "") if "inflight ask" in block)
    ask = next(line for line in block.splitlines() if "inflight ask" in line)
    command = ask.replace(".venv/bin/inflight", f"{sys.executable} -m launcher")
    assert "Paris" in run(["bash", "-c", f"{command} --temperature 0"], INFLIGHT_URL=stack.url)


def test_the_documented_triton_curls_are_answered(stack: RunningStack) -> None:
    curls = blocks("docs/triton-clients.md", "bash")
    assert len(curls) == 2  # by the ensemble's contract, and by that of NVIDIA's LLM API
    for curl in curls:
        assert '"text_output":' in run(["bash", "-c", at(stack, curl)])


def run_here(program: CodeType) -> None:
    """In a namespace of its own; what it leaves open is closed at once, as by the end of a process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        exec(program, {"__name__": "__main__"})
        gc.collect()


PAGES = ["contract", "api", "batches", "conversations", "resume", "triton-clients"]


@pytest.mark.parametrize("page", [f"docs/{page}.md" for page in PAGES])
def test_documented_programs_run_as_they_stand(
    stack: RunningStack, page: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process, which has the clients' packages already: to import one takes longer than to use it."""
    programs = blocks(page, "python")
    assert programs
    for program in programs:
        run_here(compile(at(stack, program), page, "exec"))
        assert capsys.readouterr().out.strip()
