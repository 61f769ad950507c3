"""`inflight release add` without its command line: from a checkpoint to a release that can be loaded."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.packaging.engine_task import PREPARE
from launcher.packaging.models.checkpoint import exclusive
from launcher.packaging.releases.builder import ReleaseBuilder
from launcher.packaging.releases.files import moved_in, work_dir
from launcher.packaging.releases.sources import kind_at
from launcher.packaging.remote.address import is_address
from launcher.packaging.remote.copies import fetch_model
from launcher.paths import PROJECT_ROOT
from router.control.releases.commands import refuse_other_kind, refuse_used_number
from router.control.releases.records import list_releases
from router.control.releases.writes import next_version
from router.core.manifest import Kind, Manifest, entry_name
from router.tenants.audited import AlreadyThere

if TYPE_CHECKING:
    from launcher.commands.installation import Installation
    from launcher.console import StackConsole
    from launcher.packaging.releases.builder import ReleaseRequest
    from launcher.stack.stop_signals import StopSignals
    from router.control.releases.records import Release


def add_release(
    order: ReleaseRequest,
    installation: Installation,
    console: StackConsole,
    signals: StopSignals,
    project_root: Path = PROJECT_ROOT,
    prepare_command: list[str] | None = None,
) -> Release:
    """A stop is a KeyboardInterrupt until all is made; what then follows is short, and is finished."""
    if is_address(order.path):
        with signals.handled(), signals.interrupting():
            fetched = fetch_model(order.path, installation.settings.stack.data_dir, console)
        order = replace(order, path=str(fetched.path), source=fetched.pinned)
    kind = kind_at(order.path)
    if order.from_version is not None and kind is not Kind.TENSORS:
        raise ValueError("--from-version is for a directory with a Triton model's config.pbtxt")
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
            return installation.releases.add(manifest, order.notes)


def free_version(installation: Installation, order: ReleaseRequest, kind: Kind) -> int:
    """Before the long work: what could not be registered after it is refused."""
    with installation.releases.look() as connection:
        there = list_releases(connection, order.model)
        number = order.version or next_version(connection, order.model)
        refuse_other_kind(connection, Manifest(order.model, number, kind, (entry_name(order.model, number),)))
        if order.version in [each.version for each in there]:
            raise AlreadyThere(f"{order.model}@{order.version} is there already, and releases never change")
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
