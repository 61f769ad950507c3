"""`inflight runtime install`, `use`, `list` and `remove`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from client.terminal import print
from launcher.bundle import bundled_with
from launcher.commands.options import Config
from launcher.console import StackConsole
from launcher.failure import ProcessFailed, Unusable
from launcher.packaging.runtimes import environment
from launcher.packaging.runtimes.builds import PACKAGES, choose_build
from launcher.packaging.runtimes.bundled import bundled_build
from launcher.paths import PROJECT_ROOT
from launcher.settings import SettingsError, load_settings, runtimes_dir

Name = Annotated[str, typer.Argument(help="vllm, or llm for TensorRT-LLM.")]
DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", help="Where runtimes are kept. [default: ~/.local/share/inflight]"),
]


def install(
    name: Annotated[str, typer.Argument(help="vllm.")],
    offline: Annotated[
        Path | None, typer.Option(help="A folder of wheels to install from, without any network.")
    ] = None,
    version: Annotated[
        str | None, typer.Option(help="A version other than the one that is tested most.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu or cuda. [default: cuda where there is a GPU]")
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Make an environment with a runtime's package, for the engine process to run in.

    Without a GPU that is vLLM's build for CPUs, 3 GB in all; with one, the build for CUDA. In a bundle
    it is the one that the bundle contains, with the host's torch.
    """
    with _told():
        place, bundled = _runtimes(data_dir, config), bundled_with(PROJECT_ROOT)
        if bundled.is_bundle and offline is None:
            build = bundled_build(name, bundled.wheels / name, version, device)
        else:
            build = choose_build(name, device or environment.machine_device(), version)
        found = environment.install(build, place, offline, StackConsole())
        print(f"{found.package} {found.version_text} with torch {found.torch}: {found.python}")


def use(
    name: Name,
    python: Annotated[Path, typer.Option(help="A Python that has the package.")],
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Register an environment that exists already; nothing in it is changed."""
    with _told():
        found = environment.note_environment(name, python, _runtimes(data_dir, config))
        print(f"{found.package} {found.version_text} with torch {found.torch}: {found.python}")


def list_runtimes(data_dir: DataDir = None, config: Config = None) -> None:
    """List runtimes, with those that are not installed."""
    with _told():
        found = environment.noted_environments(_runtimes(data_dir, config))
    print("engine  part of this program")
    for name in PACKAGES:
        there = found.get(name)
        if there is None:
            print(f"{name:<7} not installed")
        else:
            on = {"cpu": "CPU", "cuda": "GPU"}[there.device]
            print(
                f"{name:<7} {there.package} {there.version_text}, torch {there.torch}, {on}: {there.python}"
            )


def remove(name: Name, data_dir: DataDir = None, config: Config = None) -> None:
    """Forget a runtime, and delete its environment if it was made by `install`."""
    with _told():
        environment.remove(name, _runtimes(data_dir, config))


def _runtimes(data_dir: Path | None, config: Path | None) -> Path:
    return Path(runtimes_dir(load_settings(config, {"data_dir": data_dir})))


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (SettingsError, Unusable) as error:
        print(f"inflight: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    except ProcessFailed as error:
        print("\n  ".join([f"inflight: {error}", *error.lines]), file=sys.stderr)
        raise typer.Exit(1) from None
