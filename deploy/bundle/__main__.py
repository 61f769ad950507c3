"""Builds the bundle: wheels and project into one file under dist/, with its size and SHA-256."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import tempfile
from pathlib import Path

from packaging.requirements import Requirement
from rich.progress import BarColumn, DownloadColumn, Progress, TimeElapsedColumn

from client.screen_parts import Description
from client.terminal import Console
from deploy.bundle.archive import write_archive
from deploy.bundle.contents import contents
from deploy.bundle.selection import LEFT_OUT_OF_VLLM
from deploy.bundle.wheels import BundleError, Target, Wheelhouse, check_hashes
from deploy.sbom import Part, parts_of_wheels, render
from launcher.console import StackConsole
from launcher.packaging.models.checkpoint import CheckpointError, resolve_checkpoint
from launcher.packaging.models.embeddings import resolve_embeddings
from launcher.packaging.runtimes.builds import choose_build
from launcher.python_version import SUPPORTED
from launcher.settings import StackSettings

ROOT = Path(__file__).resolve().parents[2]
USUAL_BYTES = 60_000_000
PYTHONS = [f"{major}.{minor}" for major, minor in SUPPORTED]


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bundle", description=__doc__)
    parser.add_argument("--python-version", choices=PYTHONS, default=PYTHONS[-1], help="the GPU host's")
    parser.add_argument(
        "--with-default-model", action="store_true", help="the default models, about 165 MB more"
    )
    parser.add_argument(
        "--with",
        dest="runtime",
        choices=["vllm"],
        help="a runtime, for a host with the torch that it needs, 1.2 GB more",
    )
    options = parser.parse_args()
    console = Console()
    try:
        build(options.python_version, options.with_default_model, options.runtime == "vllm", console)
    except (BundleError, CheckpointError) as error:
        sys.exit(str(error))


def bundle_name(version: str, python: str, with_vllm: bool = False) -> str:
    more = "-vllm" if with_vllm else ""
    return f"inflight-{version}-py{python.replace('.', '')}-x86_64{more}.tar.xz"


def default_models(console: StackConsole) -> list[Path]:
    settings = StackSettings()
    text = resolve_checkpoint(settings.model, settings.data_dir, console)
    embeddings = resolve_embeddings(settings.embeddings, settings.data_dir, console)
    return [text.directory, embeddings.directory]


def same_each_time(listing: str) -> str:
    """Without its number and its moment: the same files give the same bundle."""
    document = json.loads(listing)
    document.pop("serialNumber", None)
    document.get("metadata", {}).pop("timestamp", None)
    return json.dumps(document, indent=2, sort_keys=True) + "\n"


def gather_own(target: Target, folder: Path, console: Console) -> list[Path]:
    """All that serving needs there, as requirements.lock pins it."""
    needs = [Requirement(text) for text in importlib.metadata.requires("inflight") or []]
    house = Wheelhouse(target, ROOT / "requirements.lock", folder, say=console.print)
    wheels = house.gather(need for need in needs if target.applies(need))
    check_hashes(wheels, ROOT / "requirements.hashes")
    return wheels


def gather_vllm(target: Target, folder: Path, console: Console) -> list[Path]:
    """All that it needs but torch, and the pip that installs it: as requirements-vllm.hashes pins it."""
    lock = ROOT / "requirements-vllm.hashes"
    house = Wheelhouse(target, lock, folder, say=console.print, left_out=LEFT_OUT_OF_VLLM)
    wheels = house.gather([Requirement(choose_build("vllm", "cuda", None).requirement), Requirement("pip")])
    check_hashes(wheels, lock)
    return wheels


def build(python: str, with_model: bool, with_vllm: bool, console: Console) -> None:
    version = importlib.metadata.version("inflight")
    target = Target(python)
    models = default_models(StackConsole(console)) if with_model else []
    with (
        tempfile.TemporaryDirectory(prefix="inflight-bundle-") as folder,
        tempfile.TemporaryDirectory(prefix="inflight-vllm-") as beside,
    ):
        wheels = gather_own(target, Path(folder), console)
        of_vllm = gather_vllm(target, Path(beside), console) if with_vllm else []
        file = ROOT / "dist" / bundle_name(version, python, with_vllm)
        parts = [Part("inflight", version, "Apache-2.0"), *parts_of_wheels([*wheels, *of_vllm])]
        listing = render(file.name, version, parts)
        members = contents(ROOT, wheels, version, python, models, same_each_time(listing), of_vllm)
        total_bytes = sum(len(member.read()) for member in members.values())
        columns = (Description(), BarColumn(), DownloadColumn(), TimeElapsedColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task(f"Packing {len(members)} files", total=total_bytes)
            checksum = write_archive(file, members, lambda size: progress.advance(task, size))
        listed = file.with_name(file.name.replace(".tar.xz", ".cdx.json"))
        listed.write_text(listing, encoding="utf-8")
    size_bytes = file.stat().st_size
    console.print(f"{file.relative_to(ROOT)}: {size_bytes / 1e6:.1f} MB, for Python {python} on x86_64")
    console.print(f"sha256 {checksum}", soft_wrap=True)
    count = len(json.loads(listing)["components"])
    console.print(f"{listed.relative_to(ROOT)}: its bill of materials (CycloneDX), {count} packages")
    if size_bytes > USUAL_BYTES and not (with_model or with_vllm):
        more = (size_bytes - USUAL_BYTES) / 1e6
        console.print(
            f"That is {more:.1f} MB more than usual: deploy/bundle/selection.py lists what is left out."
        )


if __name__ == "__main__":
    main()
