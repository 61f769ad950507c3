"""`inflight trtllm`: our model repository on NVIDIA's own C++ backend, in its last container that has it."""

from __future__ import annotations

import typer

from launcher.commands.trtllm import commands

trtllm = typer.Typer(
    no_args_is_help=True,
    help="Serve with NVIDIA's C++ backend: build an engine, write a repository for it, check the configs.",
)
trtllm.command("build")(commands.build)
trtllm.command("repository")(commands.repository)
trtllm.command("check")(commands.check)


def add_to(app: typer.Typer) -> None:
    app.add_typer(trtllm, name="trtllm")
