"""`python -m launcher` is the `inflight` command."""

from launcher.cli import main

main()
