"""`inflight release add`, `list`, `show`, `verify` and `remove`."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from client.terminal import confirm, print
from launcher.commands.installation import EXIT_FAILED, open_installation
from launcher.commands.option_values import model_named, release_named
from launcher.commands.options import AnyModel, AsJson, Config, DataDir, ModelName, ReleaseName
from launcher.commands.output import moment, output_console, show_json
from python_backend.wire.visible_text import visible

if TYPE_CHECKING:
    from router.control.releases.records import Release

_HASH_SHOWN = 12


def add(
    model: ModelName,
    path: Annotated[
        str,
        typer.Argument(
            show_default=False,
            help="A known model, a Hugging Face checkpoint directory, a .gguf file, a directory of a LoRA "
            "adapter or of a sentence-transformers model (BERT), or one of any Triton model, with its "
            "config.pbtxt; or the address of one: hf://, s3://, gs://, oci://, https:// or file://.",
        ),
    ],
    version: Annotated[
        int | None, typer.Option(min=1, help="Version number. [default: one more than the highest]")
    ] = None,
    parameters: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PARAMETER=VALUE",
            help="A parameter of the engine, such as inflight_precision=int4; wins over `[engine]` of "
            "inflight.toml. For a Triton model of your own: any parameter. May be repeated.",
        ),
    ] = None,
    from_version: Annotated[
        int | None,
        typer.Option(min=1, help="For a Triton model: which version directory to use. [default: the newest]"),
    ] = None,
    runs_code: Annotated[
        bool,
        typer.Option(
            "--runs-code",
            help="For an address: also fetch files that run code, such as a Triton model's config.pbtxt and "
            "model.py. They run as Triton's user. Asks for confirmation.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    notes: Annotated[str, typer.Option(help="Free text, shown by `inflight release show`.")] = "",
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Add a release of MODEL from the files at PATH; it is neither loaded nor sent requests yet.

    Weights and tokenizer are hashed and stay where they are; if they change, the release can no longer be
    loaded. Weights are packed and kernels compiled now, as `inflight up` does, so that loading is quick.
    """
    from launcher.commands.release.addition import add_release, twin_of
    from launcher.commands.release.options import parameter
    from launcher.console import StackConsole
    from launcher.packaging.releases.builder import ReleaseRequest
    from launcher.stack.stop_signals import StopSignals

    if runs_code and not yes:
        confirm(
            f"Whoever controls {path.partition('?')[0]} will run code as Triton's user, who can read this "
            "stack's secrets, keys and prompts. Fetch it?"
        )
    signals = StopSignals()
    with open_installation(data_dir, config) as ours:
        given = dict(parameter(each) for each in parameters or [])
        order = ReleaseRequest(
            model_named(model), path, version, given, from_version, notes, runs_code=runs_code
        )
        try:
            made = add_release(order, ours, StackConsole(), signals)
        except KeyboardInterrupt:
            print("Stopped: nothing was added.")
            raise typer.Exit(128 + signals.received[0]) from None
        twin = twin_of(ours, made)
        with ours.releases.look() as connection:
            from router.control.releases.records import find_split

            is_served = find_split(connection, made.manifest.model) is not None
    _tell(made, twin, is_served)


def _tell(made: Release, twin: str | None, is_served: bool) -> None:
    print(f"\n{made.manifest.name} is added.")
    for name, value in _facts(made, short=True):
        print(f"  {name:11} {value}")
    if twin is not None:
        print(f"It differs from {twin} only in its number.")
    following = "canary" if is_served else "promote"
    why = "try it on a small share of the traffic" if is_served else "serve it"
    print(f"Next, to {why}:\n  inflight release {following} {made.manifest.name}")


def _facts(release: Release, short: bool) -> list[tuple[str, str]]:
    """What is not known is left out."""
    from launcher.commands.release.tables import size

    manifest = release.manifest
    cut = _HASH_SHOWN if short else None
    needs = f"{size(manifest.needs.weights_bytes)} of weights"
    if manifest.needs.cache_bytes:
        needs += f", up to {size(manifest.needs.cache_bytes)} of cache"
    files = f"{size(sum(each.bytes for each in manifest.files))} in {len(manifest.files)} files"
    facts = [
        ("kind", manifest.kind.value + (", built in" if manifest.is_built_in else "")),
        ("adapter of", manifest.base),
        ("source", manifest.source),
        ("weights", manifest.weights_sha256[:cut]),
        ("tokenizer", manifest.tokenizer_sha256[:cut]),
        ("parameters", ", ".join(f"{key}={value}" for key, value in sorted(manifest.parameters.items()))),
        ("size", files if manifest.files else ""),
        ("needs", needs if manifest.needs.total_bytes else ""),
        ("Triton", ", ".join(manifest.members)),
        ("notes", release.notes),
    ]
    return [(name, value) for name, value in facts if value]


def list_all(
    model: AnyModel = None,
    as_json: AsJson = False,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """List releases, of all models or of one."""
    with open_installation(data_dir, config) as ours:
        from router.control.releases.records import list_releases

        with ours.releases.look() as connection:
            found = list_releases(connection, None if model is None else model_named(model))
    if as_json:
        show_json([release_json(each) for each in found])
        return
    if not found:
        print(f"There are no releases{'' if model is None else f' of {model}'} yet (`inflight release add`).")
        return
    from launcher.commands.release.tables import release_list

    output_console().print(release_list(found, time.time()))


def release_json(release: Release) -> dict[str, Any]:
    return {**asdict(release), "release": release.manifest.name}


def show_one(
    release: ReleaseName, as_json: AsJson = False, data_dir: DataDir = None, config: Config = None
) -> None:
    """Show everything about one release."""
    with open_installation(data_dir, config) as ours:
        from router.control.releases.records import find_release

        with ours.releases.look() as connection:
            found = find_release(connection, *release_named(release))
    if as_json:
        show_json(release_json(found))
        return
    why = f": {found.reason}" if found.reason else ""
    profile = ", ".join(f"{name} {value:.4g}" for name, value in sorted((found.profile or {}).items()))
    print(found.manifest.name)
    facts = [
        *_facts(found, short=False),
        ("checkpoint", found.manifest.checkpoint_dir),
        ("digest", found.digest),
        ("added", f"{moment(found.added_s)} UTC"),
        ("state", f"{found.state.value} since {moment(found.since_s)} UTC{why}"),
        ("measured", profile),
    ]
    for name, value in facts:
        if value:
            print(visible(f"  {name:11} {value}"))


def verify(release: ReleaseName, data_dir: DataDir = None, config: Config = None) -> None:
    """Check that no file of a release has changed since it was added. Exit status 1: one has."""
    with open_installation(data_dir, config) as ours:
        from router.control.releases.records import find_release
        from router.control.releases.verification import clean_and_verify

        with ours.releases.look() as connection:
            found = find_release(connection, *release_named(release))
        tampering = clean_and_verify(found.manifest, found.digest, ours.release_directories.root)
    if tampering is not None:
        print(f"{found.manifest.name} has changed since it was added: {visible(tampering)}")
        raise typer.Exit(EXIT_FAILED)
    if found.manifest.is_built_in:
        print(f"{found.manifest.name} comes with the stack, which writes it again at each start.")
        return
    files = found.manifest.files
    total_bytes = sum(each.bytes for each in files)
    print(
        f"{found.manifest.name} has not changed since it was added: {len(files)} files, {total_bytes:,} "
        "bytes."
    )


def remove(release: ReleaseName, data_dir: DataDir = None, config: Config = None) -> None:
    """Remove a release that is not loaded, with its Triton models; its checkpoint stays."""
    with open_installation(data_dir, config) as ours:
        from launcher.commands.release.addition import unshare
        from launcher.console import StackConsole
        from launcher.packaging.models.checkpoint import exclusive
        from launcher.packaging.releases.files import take_out
        from launcher.settings import keeps_files

        model, version = release_named(release)
        directories = ours.release_directories
        directories.make()
        with exclusive(directories.lock, StackConsole()):  # nobody adds one meanwhile
            found = ours.releases.forget(model, version)
            take_out(directories, found.manifest)
            if keeps_files(ours.settings):
                unshare(ours)
    print(f"{found.manifest.name} is removed.")
    if found.manifest.checkpoint_dir and not found.manifest.base:
        print(f"Its checkpoint stays: {found.manifest.checkpoint_dir}")
