"""A stack for one load test: `inflight up` as a process, on free ports and with a state of its own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.tether import tethered
from loadtest.tenants import Tenant

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_START_LIMIT_S = 600.0  # a first start downloads the model
_STOP_LIMIT_S = 60.0
_READY = "Inflight is ready"
LOG = "stack.log"
# Of a stack that is there to be tested: one of each tier, the better the larger.
TENANTS = (
    Tenant("anvil", weight=3, tier="interactive"),
    Tenant("bakery", weight=2, tier="standard"),
    Tenant("cinema", weight=1, tier="batch"),
)


class StackFailed(Exception):
    """It did not come up; the message has the end of what it said."""


@dataclass(frozen=True)
class FreshStack:
    url: str
    grpc_address: str
    triton_address: str
    triton_metrics_urls: tuple[str, ...]
    tenants: tuple[Tenant, ...] = ()
    names: dict[str, str] = field(default_factory=dict)  # of tenants, by id


@contextmanager
def fresh_stack(
    folder: Path, model: str | None, data_dir: Path | None, tenants: Sequence[Tenant]
) -> Iterator[FreshStack]:
    """Ready, and gone when the block is left. Only models come from the usual data directory."""
    state_dir = folder / "state"
    keyed, names = _register(state_dir, tenants)
    config = folder / "inflight.toml"
    # Nobody but the load test knows this stack, and its figures belong in the report.
    config.write_text(f"[router]\nstate_dir = {json.dumps(str(state_dir))}\nmetrics_open = true\n")
    command = [sys.executable, "-m", "launcher", "up"]
    command += ["--config", str(config), "--port", "0", "--grpc-port", "0"]
    command += ["--model", model] if model else []
    command += ["--data-dir", str(data_dir)] if data_dir else []
    with tethered_stack(folder, command):
        yield announced((folder / LOG).read_text(), keyed, names)


@contextmanager
def tethered_stack(folder: Path, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """The process of a stack that is ready, and stopped when the block is left."""
    output = folder / LOG
    with output.open("w") as file:
        process = subprocess.Popen(
            tethered(list(command)),
            stdout=file,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            start_new_session=True,  # a Ctrl-C is for whoever started it, who stops the stack when it is done
        )
    try:
        _wait(process, output)
        yield process
    finally:
        _stop(process)


def announced(text: str, tenants: tuple[Tenant, ...] = (), names: dict[str, str] | None = None) -> FreshStack:
    """The addresses that a stack that is ready has told."""
    address = re.search(r"^  address +(\S+?)/v1 ", text, re.MULTILINE)
    grpc = re.search(r"^  gRPC +(\S+) ", text, re.MULTILINE)
    tritons = re.findall(r"^  (?:Triton|and) +(\S+)  \(gRPC\), (\S+)", text, re.MULTILINE)
    if address is None or not tritons:
        raise StackFailed(f"the stack did not print its addresses:\n{text}")
    metrics_urls = tuple(url for _, url in tritons)
    return FreshStack(address[1], grpc[1] if grpc else "", tritons[0][0], metrics_urls, tenants, names or {})


def _register(state_dir: Path, tenants: Sequence[Tenant]) -> tuple[tuple[Tenant, ...], dict[str, str]]:
    """Makes them, each with a key, before there is a router."""
    from router.core.tenant import Role
    from router.tenants.rbac import SYSTEM
    from router.tenants.tenancy import open_administration

    if not tenants:
        return (), {}
    state_dir.mkdir(parents=True, exist_ok=True)
    keyed, names = [], {}
    with open_administration(state_dir) as admin:
        for tenant in tenants:
            made = admin.create_organisation(SYSTEM, tenant.name)
            owner = admin.create_user(SYSTEM, made.id, "owner", Role.OWNER)
            _, key = admin.create_key(SYSTEM, made.id, owner.id, "loadtest")
            keyed.append(Tenant(tenant.name, key, tenant.weight, tenant.tier))
            names[made.id] = tenant.name
    return tuple(keyed), names


def _wait(process: subprocess.Popen[bytes], output: Path) -> None:
    deadline_s = time.monotonic() + _START_LIMIT_S
    while _READY not in (said := output.read_text()) or "Ctrl-C finishes" not in said:
        if process.poll() is not None:
            raise StackFailed(f"the stack ended with status {process.returncode}:\n{said[-2000:]}")
        if time.monotonic() > deadline_s:
            raise StackFailed(f"the stack is not ready after {_START_LIMIT_S:g} s:\n{said[-2000:]}")
        time.sleep(0.1)


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    try:
        process.wait(_STOP_LIMIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
