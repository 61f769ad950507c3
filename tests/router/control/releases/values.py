"""Releases that the tests of rollouts share."""

from __future__ import annotations

from pathlib import Path

from router.control.releases import records
from router.control.releases.commands import ReleaseCommands
from router.control.releases.records import Release
from router.control.releases.states import State
from router.control.releases.writes import bump, set_state
from router.core.manifest import FileMark, Kind, Manifest, Needs, entry_name, member_name
from router.store.database import Store
from router.tenants.rbac import SYSTEM
from tests.router.tenants.values import NOW_S

MODEL = "smol"


def manifest(version: int = 1, model: str = MODEL, kind: Kind = Kind.TEXT, needs_bytes: int = 0) -> Manifest:
    """Without files of its own; `written` gives it some."""
    engine = member_name(model, version, "tensorrt_llm")
    members = (engine, entry_name(model, version)) if kind is Kind.TEXT else (entry_name(model, version),)
    return Manifest(
        model, version, kind, members, engine if kind is Kind.TEXT else "", needs=Needs(needs_bytes)
    )


def built_in(weights: str = "a", model: str = MODEL, kind: Kind = Kind.TEXT) -> Manifest:
    return Manifest(
        model,
        1,
        kind,
        ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble"),
        "tensorrt_llm",
        weights_sha256=weights,
        is_built_in=True,
    )


def written(releases_dir: Path, of: Manifest) -> Manifest:
    """The same release with a directory and a file for each of its Triton models, as they are on disk."""
    import hashlib
    from dataclasses import replace

    marks = []
    for member in of.members:
        path = releases_dir / "repository" / member / "config.pbtxt"
        path.parent.mkdir(parents=True)
        path.write_text(f'name: "{member}"\n')
        (path.parent / str(of.version)).mkdir()
        data = path.read_bytes()
        marks.append(FileMark(f"{member}/config.pbtxt", len(data), hashlib.sha256(data).hexdigest()))
    made = replace(of, files=tuple(marks))
    described = releases_dir / "manifests" / f"{made.name}.json"
    described.parent.mkdir(parents=True, exist_ok=True)
    described.write_text(made.to_json())
    return made


def office(store: Store) -> ReleaseCommands:
    return ReleaseCommands(store, SYSTEM, lambda: NOW_S)


def find(store: Store, version: int, model: str = MODEL) -> Release:
    with store.read() as connection:
        return records.find_release(connection, model, version)


def put(store: Store, version: int, state: State, model: str = MODEL, reason: str = "") -> None:
    """As if the router in control had brought it there."""
    with store.begin() as connection:
        bump(store, connection)
        set_state(connection, NOW_S, model, version, state, reason)
