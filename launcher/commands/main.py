"""The `inflight` command line: `up`, `perplexity` and `version` here, the others in their own modules."""

from __future__ import annotations

import importlib.metadata
import platform
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from client.cli import ask, chat
from client.terminal import print
from launcher.commands import (
    adapter,
    administration,
    chaos,
    deployment,
    doctor,
    loadtest,
    release,
    runtime,
    slo,
    store,
    top,
    trtllm,
    tune,
)
from launcher.commands.options import DEFAULTS, Config, DrainTimeout, GrpcPort, Host, Port
from launcher.commands.plan.command import plan
from launcher.commands.simulate.command import simulate

app = typer.Typer(
    help="Serve large language models on NVIDIA Triton behind one OpenAI-compatible address.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)


@app.command()
def up(
    port: Port = None,
    host: Host = None,
    model: Annotated[
        str | None,
        typer.Option(
            help="A known model, a Hugging Face checkpoint directory, or a .gguf file. "
            f"[default: {DEFAULTS.model}]"
        ),
    ] = None,
    embeddings: Annotated[
        str | None,
        typer.Option(
            help="The embedding model: a known one, a directory, "
            f"or '' for none. [default: {DEFAULTS.embeddings}]"
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where models and logs are kept. [default: ~/.local/share/inflight]"),
    ] = None,
    grpc_port: GrpcPort = None,
    triton_servers: Annotated[
        str | None,
        typer.Option(
            help="Number of Triton servers, each with the same models; `all`: as many as the GPUs allow. "
            f"[default: {DEFAULTS.triton_servers}]"
        ),
    ] = None,
    prefill_servers: Annotated[
        int | None,
        typer.Option(
            help="How many of the Triton servers only compute prompts, for the others. [default: 0]"
        ),
    ] = None,
    triton_grpc_port: Annotated[
        int | None,
        typer.Option(help="The first Triton's gRPC port, with certificates. [default: a Unix socket]"),
    ] = None,
    triton_metrics_port: Annotated[
        int | None, typer.Option(help="The first Triton's metrics port. [default: a free one]")
    ] = None,
    drain_timeout_s: DrainTimeout = None,
    config: Config = None,
) -> None:
    """Start Triton, the engine and the router on this machine, and keep them running.

    The first start downloads the default models (93 MB, and 84 MB for embeddings), packs weights and
    compiles the kernels; later ones need no network and take seconds.
    Every option can also be set in `inflight.toml` under `[stack]`; `[engine]` there holds the engine's
    parameters and `[router]` the router's. Ctrl-C or SIGTERM finishes the requests in flight and stops
    everything; a second Ctrl-C does not wait for them.

    Exit status: 0 stopped after serving, 1 something failed, 2 a setting cannot be used, 128 + signal number
    when stopped before it was ready.
    """
    flags = {
        "port": port,
        "host": host,
        "model": model,
        "embeddings": embeddings,
        "data_dir": data_dir,
        "grpc_port": grpc_port,
        "triton_servers": triton_servers,
        "prefill_servers": prefill_servers,
        "triton_grpc_port": triton_grpc_port,
        "triton_metrics_port": triton_metrics_port,
        "drain_timeout_s": drain_timeout_s,
    }
    # Imported here: the other commands need not wait for gRPC and numpy.
    from launcher.stack.up import run_stack

    raise typer.Exit(run_stack(flags, config))


@app.command()
def perplexity(
    model: Annotated[
        str | None,
        typer.Option(help=f"As for `inflight up`. [default: {DEFAULTS.model}]"),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(help="A text file in UTF-8. [default: a built-in text]", exists=True, dir_okay=False),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="Precisions to compare with fp32, separated by commas: int8, int4 on a CPU; bf16, fp8 on "
            "a GPU. [default: all that the device has]"
        ),
    ] = None,
    kv_precision: Annotated[
        str | None,
        typer.Option(
            help="On a GPU, fp8: measure each precision once more with keys and values in it. [default: "
            "inflight_kv_precision of `[engine]`]"
        ),
    ] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Where models and packed weights are kept. [default: ~/.local/share/inflight]"),
    ] = None,
    config: Config = None,
) -> None:
    """Measure what each precision costs a model: its perplexity on a fixed text, against fp32.

    Perplexity says how surprised the model is by a text: lower is better. A precision that is more than 3 %
    worse than fp32 is reported. Nothing needs to be running; on a GPU, nothing else should be, because
    fp32 needs 4 bytes of its memory for each weight.
    """
    from launcher.commands.perplexity import run_perplexity

    flags = {"model": model, "data_dir": data_dir}
    raise typer.Exit(run_perplexity(flags, config, text, precision, kv_precision=kv_precision))


app.command()(chat)
app.command()(ask)
app.command()(simulate)
app.command()(plan)
administration.add_to(app)
release.add_to(app)
adapter.add_to(app)
slo.add_to(app)
tune.add_to(app)
trtllm.add_to(app)
runtime.add_to(app)
top.add_to(app)
doctor.add_to(app)
deployment.add_to(app)
loadtest.add_to(app)
chaos.add_to(app)
store.add_to(app)


@app.command()
def version() -> None:
    """Show the versions of inflight, Triton, the engine's compiler and Python."""
    for package in ("inflight", "nvidia-pytriton", "numba", "torch"):
        with suppress(importlib.metadata.PackageNotFoundError):  # one for the CPU, one for the GPU
            print(f"{package} {importlib.metadata.version(package)}")
    print(f"Python {platform.python_version()} on {platform.machine()}")
