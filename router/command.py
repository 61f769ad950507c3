"""The command of the router: serve by a file of settings, or judge the tuning in a file and go."""

from __future__ import annotations

import argparse
import gc
import json
import os
import sys
from pathlib import Path

from router.routing.chat_template import TemplateBroken
from router.settings import SettingsError, load, load_options
from router.telemetry.logs import set_up_logging
from router.telemetry.redaction import redact
from router.tenants.tenancy import StoreUnusable


def main() -> int:
    parser = argparse.ArgumentParser(prog="router", description="The HTTP door in front of Triton.")
    files = parser.add_mutually_exclusive_group(required=True)
    files.add_argument("--settings", type=Path, help="the TOML file with all settings")
    files.add_argument(
        "--check", type=Path, help="check whether a router could start with this tuning, host and data_dir"
    )
    files.add_argument(
        "--inspect", type=Path, help="as --check, but prints JSON for each part; changes nothing"
    )
    arguments = parser.parse_args()
    os.umask(0o077)  # what is stored is for nobody else
    set_up_logging(sys.stderr)
    try:
        if arguments.inspect:
            from router.inspection import inspect

            print(json.dumps(inspect(arguments.inspect)))
            return 0
        if arguments.check:
            from router.startup_check import check

            check(load_options(arguments.check))
        else:
            import uvloop

            from router import server

            gc.freeze()
            gc.enable()
            settings = load(arguments.settings)
            set_up_logging(sys.stderr, log_format=settings.log_format)
            uvloop.run(server.run(settings))
    except (SettingsError, StoreUnusable, TemplateBroken, OSError) as error:
        print(f"router: {redact(str(error))}", file=sys.stderr)
        return 2
    return 0
