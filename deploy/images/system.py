"""The root of a small Debian, of the packages of this machine: what is essential, and what is asked for."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

QUERY = "${Package}\t${Essential}\t${Pre-Depends}, ${Depends}\n"
LEFT_OUT = tuple(
    f"/usr/share/{each}/" for each in ("doc", "man", "locale", "info", "lintian", "bash-completion")
)
# What packages write when they are installed.
WRITTEN = ("/etc/ssl/certs/ca-certificates.crt", "/usr/bin/sh")
# Links on every Debian since 12, whichever way a package calls a file below them.
LINKS = ("/bin", "/lib", "/lib64", "/sbin")


def write_system(packages: Collection[str], into: Path) -> None:
    listed = subprocess.run(
        ["dpkg-query", "--show", f"--showformat={QUERY}"], check=True, capture_output=True, text=True
    ).stdout
    rows = [line.split("\t") for line in listed.splitlines()]
    if missing := set(packages) - {name for name, _, _ in rows}:
        raise SystemExit(f"missing on this machine: apt-get install {' '.join(sorted(missing))}")
    essential = [name for name, is_essential, _ in rows if is_essential == "yes"]
    needs = {name: names_in(depends) for name, _, depends in rows}
    chosen = sorted(with_needs([*essential, *packages], needs))
    files = subprocess.run(["dpkg-query", "--listfiles", *chosen], check=True, capture_output=True, text=True)
    paths = "\n".join(
        sorted(path.lstrip("/") for path in kept([*files.stdout.splitlines(), *WRITTEN, *LINKS]))
    )
    command = ["tar", "--create", f"--file={into}", "--directory=/", "--no-recursion", "--files-from=-"]
    subprocess.run(command, input=paths, check=True, text=True)


def names_in(depends: str) -> list[str]:
    """Of all alternatives: those that are not installed need nobody."""
    return re.findall(r"(?:^|[,|])\s*([a-z0-9][a-z0-9+.-]+)", depends)


def with_needs(names: Iterable[str], needs: Mapping[str, list[str]]) -> set[str]:
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in needs and name not in found:
            found.add(name)
            waiting += needs[name]
    return found


def kept(paths: Iterable[str]) -> set[str]:
    """Without documentation, and each by the place that it really has."""
    places = (
        path if path in LINKS else re.sub(r"^/(bin|lib|lib64|sbin)/", r"/usr/\1/", path) for path in paths
    )
    return {
        place
        for place in places
        if place[:1] == "/" and place != "/." and not place.startswith(LEFT_OUT) and os.path.lexists(place)
    }
