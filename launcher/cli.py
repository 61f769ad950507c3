"""The `inflight` console script: checks the Python first, then hands over to the commands."""

import os

from launcher.python_version import refuse_unsupported_python


def main() -> None:
    refuse_unsupported_python()
    # Conversations, keys and prompts in shared memory are for nobody else, whatever is started from here.
    os.umask(0o077)
    from launcher.commands.main import app

    app(prog_name="inflight")
