"""The router of a stack: its settings file, its command line and its readiness."""

from __future__ import annotations

import http.client
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.toml_writing import to_toml

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from launcher.models.checkpoint import Checkpoint
    from launcher.triton import TritonServer

PIPELINE = "ensemble"
ENGINE = "tensorrt_llm"
SECRET_VARIABLE = "INFLIGHT_TRITON_SECRET"
PROBE_TIMEOUT_S = 2.0


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
            "triton_metrics_url": triton.metrics_url,
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
