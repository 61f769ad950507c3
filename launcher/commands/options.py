"""Options and arguments that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from launcher.settings import StackSettings

DEFAULTS = StackSettings()

Port = Annotated[int | None, typer.Option(help=f"Where clients connect. [default: {DEFAULTS.port}]")]
Host = Annotated[
    str | None, typer.Option(help=f"Any but a loopback address needs API keys. [default: {DEFAULTS.host}]")
]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        help="Where Triton's gRPC clients connect; 0 is any free port, -1 none. "
        f"[default: {DEFAULTS.grpc_port}]"
    ),
]
DrainTimeout = Annotated[
    float | None,
    typer.Option(
        help=f"Seconds that requests in flight have to finish. [default: {DEFAULTS.drain_timeout_s:g}]"
    ),
]
Config = Annotated[
    Path | None, typer.Option(help="Settings file. [default: ./inflight.toml when it is there]")
]
DataDir = Annotated[Path | None, typer.Option(help="As of `inflight up`. [default: ~/.local/share/inflight]")]
AsJson = Annotated[bool, typer.Option("--json", help="For programs.")]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", show_default=False)]
AnyModel = Annotated[str | None, typer.Argument(metavar="MODEL", help="[default: all]", show_default=False)]
ReleaseName = Annotated[str, typer.Argument(metavar="MODEL@VERSION", show_default=False)]
