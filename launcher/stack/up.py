"""`inflight up` without its command line: settings in, exit status out, every failure told in words."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.console import StackConsole
from launcher.failure import ProcessFailed, Unusable
from launcher.paths import PROJECT_ROOT
from launcher.settings import SettingsError, load_settings
from launcher.stack.ports import PortUnusable
from launcher.stack.stack import Stack
from launcher.stack.stop_signals import StopSignals

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

    return exit_status(console, serve)


def exit_status(console: StackConsole, serve: Callable[[], int]) -> int:
    """What `serve` returns; a failure is reported in a sentence and becomes an exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        return serve()
    except (SettingsError, PortUnusable) as error:
        console.problem(str(error))
        return EXIT_USAGE
    except (Unusable, OSError) as error:
        console.problem(str(error))
    except ProcessFailed as failure:
        console.problem(str(failure), failure.lines)
    return EXIT_FAILED
