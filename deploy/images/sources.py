"""What images are built from, as one hash: those of other sources say nothing about these."""

from __future__ import annotations

import hashlib
from pathlib import Path

from deploy.compose_file import ROOT

LABEL = "inflight.sources"


def mark_of_sources(*arguments: str, root: Path = ROOT) -> str:
    """Over the names and contents of all that .dockerignore lets through, and what they are built by."""
    sent = [line[1:] for line in (root / ".dockerignore").read_text().splitlines() if line[:1] == "!"]
    places = [root / name for name in sent] + sorted((root / "deploy").glob("*.Dockerfile"))
    found = {path for place in places for path in ([place] if place.is_file() else place.rglob("*"))}
    whole = hashlib.sha256(repr(arguments).encode())
    for path in sorted(each for each in found if each.is_file() and "__pycache__" not in each.parts):
        whole.update(f"{path.relative_to(root)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()
