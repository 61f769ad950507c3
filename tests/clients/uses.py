"""What a file of this folder consists of: uses of one client, each a function that raises where it fails.

It runs in the client's own environment, so it needs the standard library alone.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Stack:
    """The running stack that the client is pointed at."""

    url: str
    grpc: str
    model: str
    embedder: str
    key: str
    tokenizer: str  # a folder with the model's own, for tools that count tokens

    @property
    def v1(self) -> str:
        return f"{self.url}/v1"

    @property
    def address(self) -> str:
        """HOST:PORT of the HTTP port."""
        return self.url.partition("://")[2]


# From the runner; the usual addresses of `make serve` where a file is run by itself.
STACK = Stack(
    url=os.environ.get("INFLIGHT_URL", "http://127.0.0.1:8080"),
    grpc=os.environ.get("INFLIGHT_GRPC", "127.0.0.1:8081"),
    model=os.environ.get("INFLIGHT_MODEL", "smollm2-135m-instruct"),
    embedder=os.environ.get("INFLIGHT_EMBEDDER", "all-minilm-l6-v2"),
    key=os.environ.get("INFLIGHT_KEY", "none-needed"),
    tokenizer=os.environ.get("INFLIGHT_TOKENIZER", ""),
)

_uses: list[tuple[str, Callable[[], None]]] = []


def use(what: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Registers a use, in the words of the table."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        _uses.append((what, function))
        return function

    return register


def check(condition: object, found: object = "") -> None:
    """Like assert, and tells what was found."""
    if not condition:
        raise AssertionError(f"not as expected: {found!r}"[:500])


def run(*command: str, timeout_s: float = 300.0, folder: str | None = None, **environment: str) -> str:
    """A tool of the client's environment; returns what it wrote, and fails where it does.

    It runs in the given folder, where it may leave what it likes.
    """
    path = os.pathsep.join(filter(None, [os.environ.get("INFLIGHT_PROGRAMS"), os.environ["PATH"]]))
    done = subprocess.run(
        command,
        env={**os.environ, "PATH": path, **environment},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    if done.returncode:
        print(done.stdout)
        raise RuntimeError(f"{command[0]} ended with {done.returncode}: {done.stdout[-300:]}")
    return done.stdout


def main() -> None:
    """Runs every use, in order; what came of each goes to the runner, and to whoever looks on."""
    failed = False
    report = Path(os.environ.get("INFLIGHT_REPORT", os.devnull))
    for what, function in _uses:
        began_s = time.monotonic()
        problem = ""
        try:
            function()
        except Exception as error:
            traceback.print_exc()
            problem, failed = f"{type(error).__name__}: {error}", True
        took_s = round(time.monotonic() - began_s, 2)
        print(f"{'failed' if problem else 'ok':6}  {what}  ({took_s} s)", flush=True)
        with report.open("a") as out:
            out.write(json.dumps({"use": what, "problem": problem, "took_s": took_s}) + "\n")
    sys.exit(1 if failed else 0)
