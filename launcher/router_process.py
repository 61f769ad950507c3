"""The router of a stack: its settings file, its command line and its readiness."""

from __future__ import annotations

import http.client
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.settings import SettingsError
from launcher.toml_writing import to_toml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.models.checkpoint import Checkpoint
    from launcher.triton import TritonServer

PIPELINE = "ensemble"
ENGINE = "tensorrt_llm"
PROBE_TIMEOUT_S = 2.0
EXIT_USAGE = 2
# The router's own default, and what it takes at most to close its connections and to exit.
DEFAULT_STOP_TIMEOUT_S = 5.0
CLOSING_S = 10.0


def check_router_settings(extra: Mapping[str, Any], file: Path) -> None:
    """Lets the router judge its own settings, of which this package knows nothing, before it is needed."""
    if not extra:
        return
    file.write_text(to_toml(extra), encoding="utf-8")
    command = [sys.executable, "-m", "router", "--check", str(file)]
    # Not in the user's directory, where another package may be called router.
    checked = subprocess.run(command, capture_output=True, text=True, check=False, cwd=file.parent)
    if checked.returncode == EXIT_USAGE:
        raise SettingsError(f"[router] {checked.stderr.strip().removeprefix('router: ')}")


def longest_stop_s(drain_timeout_s: float, extra: Mapping[str, Any]) -> float:
    """How long a proper end may take: requests drain, the rest is cut, stops are waited for twice over."""
    return drain_timeout_s + 4 * float(extra.get("stop_timeout_s", DEFAULT_STOP_TIMEOUT_S)) + CLOSING_S


@dataclass(frozen=True)
class RouterProcess:
    host: str
    port: int
    settings_path: Path

    @property
    def url(self) -> str:
        return f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}"

    def command(self) -> list[str]:
        return [sys.executable, "-m", "router", "--settings", str(self.settings_path)]

    def write_settings(
        self, triton: TritonServer, checkpoint: Checkpoint, drain_timeout_s: float, extra: Mapping[str, Any]
    ) -> None:
        model = {
            "name": checkpoint.name,
            "pipeline": PIPELINE,
            "engine": ENGINE,
            "checkpoint_dir": str(checkpoint.directory),
        }
        document = {
            "host": self.host,
            "port": self.port,
            "triton_grpc_url": triton.grpc_url,
            "drain_timeout_s": drain_timeout_s,
            **extra,
            "models": [model],
        }
        self.settings_path.write_text(to_toml(document), encoding="utf-8")

    def is_ready(self) -> bool:
        connection = http.client.HTTPConnection(self.host, self.port, timeout=PROBE_TIMEOUT_S)
        try:
            connection.request("GET", "/health/ready")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
