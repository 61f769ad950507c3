"""The command lines of `inflight triton` and `inflight router`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from launcher.commands.options import DEFAULTS, Config, DrainTimeout, GrpcPort, Host, Port
from launcher.packaging.triton_runtime import HOME_VARIABLE

GRPC_PORT, METRICS_PORT = 8001, 8002  # Triton's own

StateDir = Annotated[
    Path | None,
    typer.Option(
        help="Directory shared by Triton and the routers: releases, and what Triton serves. "
        "[default: [router] state_dir, or else the data directory]"
    ),
]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        help="File with the secret that Triton and its routers share. [default: generated in the state "
        "directory]"
    ),
]


def triton(
    host: Annotated[
        str, typer.Option(help="Address to listen on; any but a loopback address needs --secret-file.")
    ] = "127.0.0.1",
    grpc_port: Annotated[int, typer.Option(help="gRPC port, for routers; 0 is any free one.")] = GRPC_PORT,
    metrics_port: Annotated[
        int, typer.Option(help="Metrics port, for Prometheus; 0 is any free one.")
    ] = METRICS_PORT,
    model: Annotated[
        str | None, typer.Option(help=f"As for `inflight up`. [default: {DEFAULTS.model}]")
    ] = None,
    embeddings: Annotated[
        str | None, typer.Option(help=f"As for `inflight up`. [default: {DEFAULTS.embeddings}]")
    ] = None,
    servers: Annotated[
        str,
        typer.Option(
            metavar="N|all",
            help="Number of Triton servers, each with ports ten higher than the one before; `all`: one for "
            "each GPU. Routers find all of them through the first.",
        ),
    ] = "1",
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Where models are kept; routers read them at the same path. "
            "[default: ~/.local/share/inflight]"
        ),
    ] = None,
    state_dir: StateDir = None,
    secret_file: SecretFile = None,
    triton_home: Annotated[
        Path | None,
        typer.Option(
            envvar=HOME_VARIABLE,
            show_envvar=False,
            help="An installed Triton: /opt/tritonserver in NVIDIA's images. "
            "[default: $INFLIGHT_TRITON_HOME, or the one from PyPI]",
        ),
    ] = None,
    engine_dir: Annotated[
        Path | None,
        typer.Option(help="A TensorRT engine of the model, run by the tensorrtllm library of --triton-home."),
    ] = None,
    config: Config = None,
) -> None:
    """Start one Triton with the engine on this machine, for routers that run elsewhere.

    It prepares the model as `inflight up` does, and writes into the state directory what routers need
    to know. Several servers share only that directory. SIGTERM stops it; exit status as for `inflight up`.
    """
    from launcher.commands.deployment.triton_server import TritonOptions, run_triton

    options = TritonOptions(host, grpc_port, metrics_port, secret_file, triton_home, engine_dir, servers)
    flags = {"model": model, "embeddings": embeddings, "data_dir": data_dir}
    raise typer.Exit(run_triton(flags, config, state_dir, options))


def router(
    triton: Annotated[
        list[str],
        typer.Option(
            metavar="HOST:PORT",
            help="Address of a Triton started by `inflight triton`; dns:///HOST:PORT: every address that "
            "the name resolves to, looked up regularly; file:///PATH: the addresses in a file, one "
            "per line, which may change. May be repeated.",
        ),
    ],
    host: Host = None,
    port: Port = None,
    grpc_port: GrpcPort = None,
    state_dir: StateDir = None,
    secret_file: SecretFile = None,
    admin_key_file: Annotated[
        Path | None,
        typer.Option(help="File with an API key of a platform admin, with all scopes; registered at start."),
    ] = None,
    metrics_key_file: Annotated[
        Path | None, typer.Option(help="File with an API key for Prometheus; registered at start.")
    ] = None,
    loadtest_key_file: Annotated[
        Path | None,
        typer.Option(
            help="File with an API key for load tests; registered at start, for inference and embeddings, "
            "valid for 30 days."
        ),
    ] = None,
    drain_timeout_s: DrainTimeout = None,
    plain_tritons: Annotated[
        bool,
        typer.Option(
            "--plain-tritons",
            help="For an upgrade from 0.7.0: connects without encryption to its Triton servers, which have "
            "no certificates, as its routers do.",
        ),
    ] = False,
    config: Config = None,
) -> None:
    """Start a router in front of Triton servers that run elsewhere.

    It waits for what `inflight triton` writes into the state directory, and restarts when that changes.
    `[router]` of `inflight.toml` holds its settings. Several routers may share a store. SIGTERM lets requests
    in flight finish; the exit status is as for `inflight up`.
    """
    from launcher.commands.deployment.first_keys import FirstKey
    from launcher.commands.deployment.router_server import RouterOptions, run_router

    given = (
        ("admin", admin_key_file, True, False),
        ("metrics", metrics_key_file, False, False),
        ("loadtest", loadtest_key_file, False, True),
    )
    keys = tuple(FirstKey(name, file, *what) for name, file, *what in given if file is not None)
    flags = {"host": host, "port": port, "grpc_port": grpc_port, "drain_timeout_s": drain_timeout_s}
    options = RouterOptions(tuple(triton), secret_file, keys, plain_tritons)
    raise typer.Exit(run_router(flags, config, state_dir, options))
