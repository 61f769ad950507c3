"""What `inflight router` must know of the models that `inflight triton` serves: a file that both can reach.

Both run as the same user. It is replaced as a whole: whoever reads it finds the former or the new one. Where
they share nothing but the store it is there, with the files that a router reads of those models.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.settings import SettingsError
from launcher.stack.router_process import Served
from router.core.manifest import FileMark
from router.store.private_directory import make_private

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FACTS_FILE = "deployment.json"
FORMAT = 1


def facts_path(state_dir: Path) -> Path:
    return state_dir / FACTS_FILE


def document_of(served: Served, files: Sequence[FileMark] = ()) -> str:
    document = {
        "format": FORMAT,
        "models": list(served.models),
        "embedders": list(served.embedders),
        "ports": list(served.ports),
        "weights_bytes": served.weights_bytes,
    }
    if files:
        document["files"] = [asdict(mark) for mark in files]
    return json.dumps(document, indent=2)


def write_facts(state_dir: Path, served: Served) -> Path:
    make_private(state_dir)
    descriptor, name = tempfile.mkstemp(dir=state_dir, prefix=f".{FACTS_FILE}-")
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(document_of(served))
            file.flush()
            os.fsync(descriptor)
        Path(name).replace(facts_path(state_dir))
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return facts_path(state_dir)


def read_facts(state_dir: Path) -> Served | None:
    """None where nobody has written it yet."""
    path = facts_path(state_dir)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
    return parse_facts(text, str(path))[0]


def parse_facts(text: str, where: str) -> tuple[Served, tuple[FileMark, ...]]:
    try:
        document = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"{where} is not what `inflight triton` writes: {error}") from error
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise SettingsError(f"{where} was written by another version of inflight: restart `inflight triton`")
    ports, weights_bytes = document.get("ports", []), document.get("weights_bytes", 0)
    if not isinstance(ports, list) or not all(type(port) is int for port in ports):
        raise SettingsError(f"{FACTS_FILE}: ports is not a list of numbers")
    if type(weights_bytes) is not int:
        raise SettingsError(f"{FACTS_FILE}: weights_bytes is not a number")
    served = Served(_tables(document, "models"), _tables(document, "embedders"), tuple(ports), weights_bytes)
    return served, tuple(FileMark(**each) for each in document.get("files", ()))


def _tables(document: Mapping[str, Any], key: str) -> tuple[Mapping[str, Any], ...]:
    tables = document.get(key)
    if not isinstance(tables, list) or not all(isinstance(each, dict) for each in tables):
        raise SettingsError(f"{FACTS_FILE}: {key} is not a list of tables")
    return tuple(tables)
