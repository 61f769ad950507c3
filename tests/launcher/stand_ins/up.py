"""Run as a script (project root, settings file): `inflight up` with the stand-in project and router."""

from __future__ import annotations

import sys
from pathlib import Path

from launcher.up import run_stack

ROUTER = [sys.executable, str(Path(__file__).with_name("router.py"))]


def main() -> None:
    project_root, settings_file = (Path(argument) for argument in sys.argv[1:])
    sys.exit(run_stack({}, settings_file, project_root=project_root, router_command=ROUTER))


if __name__ == "__main__":
    main()
