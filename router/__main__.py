"""`python -m router --settings router.toml`"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path

import uvloop

from router import server
from router.prompting import TemplateBroken
from router.settings import SettingsError, load


def main() -> int:
    parser = argparse.ArgumentParser(prog="router", description="The HTTP door in front of Triton.")
    parser.add_argument("--settings", type=Path, required=True, help="the TOML file with all settings")
    arguments = parser.parse_args()
    logging.basicConfig(
        stream=sys.stderr, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s"
    )
    try:
        uvloop.run(server.run(load(arguments.settings)))
    except (SettingsError, TemplateBroken, OSError) as error:
        print(f"router: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
