"""Run as a script (project root, settings file): `inflight up` with stand-ins for all that is slow."""

from __future__ import annotations

import sys
from pathlib import Path

from launcher.stack.up import run_stack

ROUTER = [sys.executable, str(Path(__file__).with_name("stub_router.py"))]
PREPARE = [sys.executable, str(Path(__file__).with_name("prepare.py"))]


def main() -> None:
    project_root, settings_file = (Path(argument) for argument in sys.argv[1:])
    sys.exit(run_stack({}, settings_file, project_root, ROUTER, PREPARE))


if __name__ == "__main__":
    main()
