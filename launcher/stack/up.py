"""`inflight up` without its command line: settings in, exit status out, every failure told in words."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.console import StackConsole
from launcher.packaging.models.checkpoint import CheckpointError
from launcher.paths import PROJECT_ROOT
from launcher.settings import SettingsError, load_settings
from launcher.stack.ports import PortUnusable
from launcher.stack.repository import RepositoryError
from launcher.stack.stack import Stack
from launcher.stack.stop_signals import StopSignals
from launcher.stack.supervisor import StackFailed
from launcher.stack.triton_runtime import RuntimeMissing

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

EXIT_FAILED = 1
EXIT_USAGE = 2


def run_stack(
    flags: Mapping[str, object],
    config: Path | None,
    project_root: Path = PROJECT_ROOT,
    router_command: list[str] | None = None,
    prepare_command: list[str] | None = None,
) -> int:
    console = StackConsole()

    def serve() -> int:
        settings = load_settings(config, flags)
        return Stack(settings, project_root, console, StopSignals(), router_command, prepare_command).run()

    return in_words(console, serve)


def in_words(console: StackConsole, serve: Callable[[], int]) -> int:
    """The exit status of serving; what keeps it from that is told in a sentence."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        return serve()
    except (SettingsError, PortUnusable) as error:
        console.problem(str(error))
        return EXIT_USAGE
    except (CheckpointError, RepositoryError, RuntimeMissing, OSError) as error:
        console.problem(str(error))
    except StackFailed as failure:
        console.problem(str(failure), failure.lines)
    return EXIT_FAILED
