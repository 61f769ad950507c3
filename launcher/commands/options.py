"""Options and arguments that several commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from launcher.settings import StackSettings

DEFAULTS = StackSettings()

Port = Annotated[int | None, typer.Option(help=f"Port for HTTP clients. [default: {DEFAULTS.port}]")]
Host = Annotated[
    str | None,
    typer.Option(
        help=f"Address to listen on; any but a loopback address needs API keys. [default: {DEFAULTS.host}]"
    ),
]
GrpcPort = Annotated[
    int | None,
    typer.Option(
        help=f"Port for Triton's gRPC clients; 0 is any free port, -1 none. [default: {DEFAULTS.grpc_port}]"
    ),
]
DrainTimeout = Annotated[
    float | None,
    typer.Option(
        help=f"Seconds that requests in flight get to finish. [default: {DEFAULTS.drain_timeout_s:g}]"
    ),
]
Config = Annotated[
    Path | None, typer.Option(help="Settings file. [default: ./inflight.toml when it is there]")
]
DataDir = Annotated[
    Path | None, typer.Option(help="As for `inflight up`. [default: ~/.local/share/inflight]")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
ModelName = Annotated[str, typer.Argument(metavar="MODEL", show_default=False)]
AnyModel = Annotated[str | None, typer.Argument(metavar="MODEL", help="[default: all]", show_default=False)]
ReleaseName = Annotated[str, typer.Argument(metavar="MODEL@VERSION", show_default=False)]
SloOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="[TIER=]TIMES",
        help="Latency objective for 95 % of requests, such as ttft:1s,itl:60ms,e2e:20s (first token, token "
        "to token, end to end) for all, or interactive=ttft:1s for one tier; may be repeated.",
    ),
]
