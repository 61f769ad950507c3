"""The `inflight` console script: checks the Python first, then hands over to the commands."""

from launcher.python_version import refuse_unsupported_python


def main() -> None:
    refuse_unsupported_python()
    from launcher.commands.main import app

    app(prog_name="inflight")
