"""`python -m python_backend.embeddings DIRECTORY`: ends with a sentence where that cannot make embeddings."""

from __future__ import annotations

import sys
from pathlib import Path

from python_backend.embeddings.description import read_description
from python_backend.wire.errors import InflightError


def main() -> None:
    try:
        read_description(Path(sys.argv[1]))
    except InflightError as error:
        sys.exit(error.message)


if __name__ == "__main__":
    main()
