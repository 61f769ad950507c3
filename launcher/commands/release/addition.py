"""`inflight release add` without its command line: from a checkpoint to a release that can be loaded."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.commands.deployment.model_facts import parse_facts
from launcher.packaging.engine_task import PREPARE
from launcher.packaging.models.checkpoint import exclusive
from launcher.packaging.releases.builder import ReleaseBuilder
from launcher.packaging.releases.delivery import publish, published_files, texts_beside
from launcher.packaging.releases.files import moved_in, work_dir
from launcher.packaging.releases.sources import is_adapter, kind_at
from launcher.packaging.remote.address import is_address, is_elsewhere, parse_address
from launcher.packaging.remote.copies import fetch_model, is_fetched
from launcher.paths import PROJECT_ROOT
from launcher.settings import keeps_files
from router.control.releases.commands import refuse_other_kind, refuse_used_number
from router.control.releases.records import find_release, find_split, list_releases
from router.control.releases.writes import next_version
from router.core.manifest import Kind, Manifest, entry_name, parent_of
from router.store.release_files import drop_others, find_beside, find_deployment, put_beside
from router.tenants.audited import AlreadyThere

if TYPE_CHECKING:
    from launcher.commands.installation import Installation
    from launcher.console import StackConsole
    from launcher.packaging.releases.builder import ReleaseRequest
    from launcher.stack.stop_signals import StopSignals
    from router.control.releases.records import Release
    from router.core.manifest import FileMark

log = logging.getLogger(__name__)


def add_release(
    order: ReleaseRequest,
    installation: Installation,
    console: StackConsole,
    signals: StopSignals,
    project_root: Path = PROJECT_ROOT,
    prepare_command: list[str] | None = None,
) -> Release:
    """A stop is a KeyboardInterrupt until all is made; what then follows is short, and is finished."""
    is_own = not (
        is_elsewhere(order.path) or is_fetched(Path(order.path), installation.settings.stack.data_dir)
    )
    if order.runs_code and is_own:
        raise ValueError(
            "--runs-code is for an address: what lies in folders of your own may run code anyway"
        )
    if is_address(order.path):
        order = fetched(order, installation, console, signals)
    kind = kind_at(order.path, is_own or order.runs_code)
    if order.runs_code and kind is not Kind.TENSORS:
        raise ValueError(f"{order.source} is not a Triton model: add it without --runs-code")
    if order.from_version is not None and kind is not Kind.TENSORS:
        raise ValueError("--from-version is for a directory with a Triton model's config.pbtxt")
    order = replace(order, base=base_of(installation, order))
    directories = installation.release_directories
    maker = ReleaseBuilder(order, installation.settings, console, project_root, prepare_command or PREPARE)
    with signals.handled(), ExitStack() as stack:
        with signals.interrupting():
            version = free_version(installation, order, kind)
            directories.make()
            stack.enter_context(exclusive(directories.lock, console))
            version = free_version(installation, order, kind)  # who had the lock before may have taken it
            work = stack.enter_context(work_dir(directories))
            manifest = maker.make(kind, version, work)
        with moved_in(work, directories, manifest):
            if keeps_files(installation.settings):
                share(installation, manifest, console)
            return installation.releases.add(manifest, order.notes)


def fetched(
    order: ReleaseRequest, installation: Installation, console: StackConsole, signals: StopSignals
) -> ReleaseRequest:
    """The same of what its address has; that its code was allowed is on record before it is here."""
    if order.runs_code:
        asked = parse_address(order.path).asked.rstrip("/")
        log.warning("%s may run code: it was allowed for %s", asked, order.model)
        installation.releases.note_code(order.model, order.version, asked)
    with signals.handled(), signals.interrupting():
        copy = fetch_model(order.path, installation.settings.stack.data_dir, console, order.runs_code)
    return replace(order, path=str(copy.path), source=copy.pinned)


def base_of(installation: Installation, order: ReleaseRequest) -> Manifest | None:
    """The release that an adapter is made for: what its base is served by now; None for anything else."""
    model = parent_of(order.model)
    if not is_adapter(order.path):
        if model is not None:
            raise ValueError(
                f"{order.model!r} is the name of an adapter, and {order.path} has no adapter_config.json"
            )
        return None
    if model is None:
        raise ValueError(f"{order.path} is a LoRA adapter: its name is its base's and its own, BASE:NAME")
    with installation.releases.look() as connection:
        split = find_split(connection, model)
        if split is None:
            raise ValueError(f"{model} is not served: an adapter is added to a model that is")
        base = find_release(connection, model, split.stable).manifest
    if base.kind is not Kind.TEXT or base.base:
        raise ValueError(f"{base.name} does not generate text with an engine, so it takes no adapters")
    return base


def share(installation: Installation, manifest: Manifest, console: StackConsole) -> None:
    """Into the store, before the release can be seen in it: what is not there whole is seen by nobody."""
    store, repository = installation.store, installation.release_directories.repository
    beside: list[FileMark] = []
    if manifest.checkpoint_dir:
        beside = texts_beside(Path(manifest.checkpoint_dir), manifest.files, console)
    files = {**published_files(manifest, repository), **{mark: Path(mark.path) for mark in beside}}
    publish(store, files, console)
    with store.begin() as connection:
        put_beside(store, connection, manifest.name, beside)


def unshare(installation: Installation) -> None:
    """What no release has any more, and nothing that is served, leaves the store."""
    with installation.store.begin() as connection:
        found = find_deployment(connection)
        kept = {mark.sha256 for mark in (parse_facts(found, "the store")[1] if found else ())}
        for release in list_releases(connection):
            marks = [*release.manifest.files, *find_beside(connection, release.manifest.name)]
            kept |= {mark.sha256 for mark in marks}
        drop_others(connection, kept)


def free_version(installation: Installation, order: ReleaseRequest, kind: Kind) -> int:
    """Before the long work: what could not be registered after it is refused."""
    with installation.releases.look() as connection:
        there = list_releases(connection, order.model)
        number = order.version or next_version(connection, order.model)
        base = "" if order.base is None else order.base.name
        planned = Manifest(order.model, number, kind, (entry_name(order.model, number),), base=base)
        refuse_other_kind(connection, planned)
        if order.version in [each.version for each in there]:
            raise AlreadyThere(f"{order.model}@{order.version} already exists, and releases never change")
        refuse_used_number(connection, order.model, number)
    return number


def twin_of(installation: Installation, release: Release) -> str | None:
    """Another release that differs from this one in its number alone."""
    with installation.releases.look() as connection:
        there = list_releases(connection, release.manifest.model)
    for each in there:
        if each.version != release.version and each.manifest.identity == release.manifest.identity:
            return each.manifest.name
    return None
