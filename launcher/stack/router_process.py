"""The router of a stack: its settings file, its command line and its readiness."""

from __future__ import annotations

import http.client
import subprocess
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from launcher.packaging.repository import EMBEDDINGS, ENGINE, PIPELINE
from launcher.settings import SettingsError
from launcher.toml import to_toml
from router.core.address import is_loopback

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from launcher.packaging.models.checkpoint import Checkpoint
    from launcher.packaging.models.fingerprint import Fingerprint
    from launcher.settings import Settings
    from launcher.stack.triton_server import TritonServer

PROBE_TIMEOUT_S = 2.0
LOOPBACK = "127.0.0.1"
EXIT_USAGE = 2
# The router's own default, and what it takes at most to close its connections and to exit.
DEFAULT_STOP_TIMEOUT_S = 5.0
CLOSING_S = 10.0
# A Triton that is started again stops, starts its processes, and reads weights, from a disk that is not fast.
RESTART_S = 60.0  # the router's own default
RESTART_BYTES_PER_S = 200e6
LONGEST_WAIT_S = 600.0


def check_router_settings(host: str, data_dir: Path, extra: Mapping[str, Any], file: Path) -> None:
    """Lets the router judge its own settings, of which this package knows nothing, before it is needed.

    Where others can reach the host, it also looks whether there are keys.
    """
    if not extra and is_loopback(host):
        return  # nothing to judge, and asking takes a second
    file.write_text(to_toml({"host": host, "data_dir": str(data_dir), **extra}), encoding="utf-8")
    command = [sys.executable, "-m", "router", "--check", str(file)]
    # Not in the user's directory, where another package may be called router.
    checked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=file.parent)
    if checked.returncode == EXIT_USAGE:
        raise SettingsError(f"[router] {checked.stderr.strip().removeprefix('router: ')}")


def longest_stop_s(drain_timeout_s: float, extra: Mapping[str, Any]) -> float:
    """How long a proper end may take: requests drain, the rest is cut, stops are waited for twice over."""
    return drain_timeout_s + 4 * float(extra.get("stop_timeout_s", DEFAULT_STOP_TIMEOUT_S)) + CLOSING_S


def revive_wait_s(weights_bytes: int) -> float:
    """How long requests wait for the only Triton, unless the operator has said it."""
    return min(RESTART_S + weights_bytes / RESTART_BYTES_PER_S, LONGEST_WAIT_S)


def add_command(settings: Settings) -> list[str]:
    """`inflight release add`, as the router may run it for who administers it from elsewhere."""
    command = [sys.executable, "-m", "launcher", "release", "add", f"--data-dir={settings.stack.data_dir}"]
    return command if settings.file is None else [*command, f"--config={settings.file}"]


@dataclass(frozen=True)
class BuiltIn:
    """A model that the stack brings with it, and its parameters as far as they were chosen."""

    checkpoint: Checkpoint
    fingerprint: Fingerprint
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def table(self) -> dict[str, Any]:
        return {
            "name": self.checkpoint.name,
            "checkpoint_dir": str(self.checkpoint.directory),
            "weights_sha256": self.fingerprint.weights_sha256,
            "tokenizer_sha256": self.fingerprint.tokenizer_sha256,
        }


@dataclass(frozen=True)
class Served:
    """What Triton serves from its start, in the router's words: tables of its settings."""

    models: tuple[Mapping[str, Any], ...]
    embedders: tuple[Mapping[str, Any], ...] = ()
    ports: tuple[int, ...] = ()  # of all servers that were started together, the first being the one named
    weights_bytes: int = field(default=0, compare=False)  # which alone is no reason to start a router again


def served(text: BuiltIn, embeddings: BuiltIn | None) -> Served:
    model = {**text.table, "pipeline": PIPELINE, "engine": ENGINE, "parameters": dict(text.parameters)}
    embedders = ({**embeddings.table, "triton_model": EMBEDDINGS},) if embeddings else ()
    weights_bytes = sum(each.fingerprint.weights_bytes for each in (text, embeddings) if each)
    return Served((model,), embedders, weights_bytes=weights_bytes)


@dataclass(frozen=True)
class RouterProcess:
    host: str
    port: int
    settings_path: Path
    data_dir: Path
    tls: bool = False
    health_port: int = 0  # where it is probed when clients need certificates; 0: where they connect
    grpc_port: int = -1

    @property
    def url(self) -> str:
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    @property
    def grpc_url(self) -> str | None:
        if self.grpc_port < 0:
            return None
        return f"{f'[{self.host}]' if ':' in self.host else self.host}:{self.grpc_port}"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "router", "--settings", str(self.settings_path)]

    def write_settings(
        self,
        tritons: Sequence[TritonServer],
        text: BuiltIn,
        drain_timeout_s: float,
        extra: Mapping[str, Any],
        embeddings: BuiltIn | None = None,
    ) -> None:
        tables = [triton.door.router_settings for triton in tritons]
        self.write_settings_for(tables, served(text, embeddings), drain_timeout_s, extra)

    def write_settings_for(
        self,
        tritons: Sequence[Mapping[str, Any]],
        served: Served,
        drain_timeout_s: float,
        extra: Mapping[str, Any],
    ) -> None:
        document = {
            "host": self.host,
            "port": self.port,
            "grpc_port": self.grpc_port,
            "data_dir": str(self.data_dir),
            "drain_timeout_s": drain_timeout_s,
            "revive_wait_s": revive_wait_s(served.weights_bytes),
            **extra,
            "triton_servers": [dict(table) for table in tritons],
            "models": list(served.models),
        }
        if self.health_port:
            document["health_port"] = self.health_port
        if served.embedders:
            document["embedders"] = list(served.embedders)
        # For nobody else: [router] may hold secrets.
        self.settings_path.touch(mode=0o600)
        self.settings_path.chmod(0o600)
        self.settings_path.write_text(to_toml(document), encoding="utf-8")

    def is_live(self) -> bool:
        return self._status("/health/live") == 200

    def is_ready(self) -> bool:
        return self._status("/health/ready") == 200

    def needs_key(self) -> bool:
        """Whether examples should show one; over TLS nobody serves without."""
        return bool(self.health_port) or self._status("/v1/models") == 401

    def _status(self, path: str) -> int:
        """0 where nobody answers."""
        host, port = (LOOPBACK, self.health_port) if self.health_port else (self.host, self.port)
        connection = http.client.HTTPConnection(host, port, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request("GET", path)
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0
        finally:
            connection.close()
