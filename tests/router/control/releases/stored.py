"""Releases in a store, in whatever state a test needs them; nothing is on disk and nothing is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.control.releases.commands import ReleaseCommands
from router.control.releases.states import State
from router.control.releases.writes import set_state
from router.core.manifest import FileMark, Kind, Manifest, Needs, entry_name
from router.tenants.rbac import SYSTEM

if TYPE_CHECKING:
    from router.store.database import Store


def manifest_of(model: str, version: int, kind: Kind = Kind.TEXT) -> Manifest:
    return Manifest(
        model,
        version,
        kind,
        (entry_name(model, version),),
        checkpoint_dir="/secret/place",
        weights_sha256="a" * 64,
        tokenizer_sha256="b" * 64,
        parameters={"max_batch_size": "8", "engine_dir": "/secret/place/engine"},
        needs=Needs(100, 20),
        files=(FileMark("config.pbtxt", 11, "c" * 64), FileMark("/secret/place/weights", 100, "d" * 64)),
    )


def keep_release(
    store: Store, model: str, version: int, state: State = State.READY, reason: str = ""
) -> None:
    """As if it had been added and, unless it is ADDED, had been brought to its state since."""
    ReleaseCommands(store, SYSTEM).add(manifest_of(model, version))
    move_release(store, model, version, state, reason)


def move_release(store: Store, model: str, version: int, state: State, reason: str = "") -> None:
    with store.begin() as connection:
        set_state(connection, 1.0, model, version, state, reason)
