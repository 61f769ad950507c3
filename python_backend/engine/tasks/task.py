"""A program of the engine that someone starts for one piece of work: JSON in, JSON lines out.

What it is told is its one argument. It tells how far it is and what it found on standard output, one object
to a line; a `notice` is for the user to read. When it cannot go on, the last line of standard error says why
("kind: sentence"), and the exit status whether a parameter is to blame (2) or something else (1).
"""

from __future__ import annotations

import json
import logging
import signal
import sys
from typing import TYPE_CHECKING, Any

from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from collections.abc import Callable

_log = logging.getLogger("inflight.engine")

EXIT_FAILED = 1
EXIT_PARAMETER = 2


def tell(**event: Any) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def run_task(task: Callable[[dict[str, Any]], None]) -> int:
    """The exit status."""
    logging.basicConfig(level=logging.ERROR, format="%(message)s")
    # So that whoever is asked to end still removes what is half done.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        task(json.loads(sys.argv[1]))
    except InflightError as error:
        return _give_up(error)
    except Exception as error:
        _log.exception("the task failed")
        return _give_up(InflightError(ErrorKind.ENGINE_FAILED, str(error) or type(error).__name__))
    return 0


def _give_up(error: InflightError) -> int:
    sys.stderr.write(error.to_text().replace("\n", " ") + "\n")
    return EXIT_FAILED if error.param is None else EXIT_PARAMETER
