"""`python -m router --settings router.toml`, or `--check` to judge the tuning in a file and go."""

from __future__ import annotations

import gc
import sys

if __name__ == "__main__":
    # What is imported stays: the collector would look through it in vain, for a sixth of the time.
    gc.disable()
    from router.command import main

    sys.exit(main())
