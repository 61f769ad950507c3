"""Models by address: fetched once from real servers, checked, pinned, and served when those are gone."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from launcher.packaging.models.checkpoint import CheckpointError, resolve_checkpoint
from launcher.packaging.models.fingerprint import fingerprint
from launcher.packaging.remote import ranged_download
from launcher.packaging.remote.copies import LocalCopy, fetch_model, local_path
from tests.fakes.file_server import COMMIT, FileServer
from tests.launcher.conftest import RecordedProgress

if TYPE_CHECKING:
    from collections.abc import Callable

    Fetch = Callable[[str], LocalCopy]

SERVED = {"config.json", "tokenizer.json", "generation_config.json", "model.safetensors"}


@pytest.fixture
def fetch(tmp_path: Path, progress: RecordedProgress) -> Fetch:
    return lambda address: fetch_model(address, tmp_path / "data", progress)


@pytest.fixture
def hub(web: FileServer, monkeypatch: pytest.MonkeyPatch) -> FileServer:
    monkeypatch.setenv("HF_ENDPOINT", web.url)
    return web


def names(copy: LocalCopy) -> set[str]:
    return {path.relative_to(copy.path).as_posix() for path in copy.path.rglob("*") if path.is_file()}


def write_sums(checkpoint: Path) -> str:
    """As sha256sum writes them; gives the hash that pins the list."""
    files = [path for path in sorted(checkpoint.iterdir()) if path.name in SERVED]
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (checkpoint / "SHA256SUMS").write_text("".join(lines))
    return "".join(lines)


def test_a_repository_of_the_hub_is_fetched_and_pinned_to_its_commit(
    hub: FileServer, fetch: Fetch, checkpoint: Path
) -> None:
    (checkpoint / "pytorch_model.bin").write_bytes(b"runs code when it is read")
    copy = fetch("hf://org/Tiny-Llama")
    assert names(copy) == SERVED | {"manifest.json"}
    assert copy.pinned == f"hf://org/Tiny-Llama@{COMMIT}"
    assert copy.path.name == "tiny-llama"
    manifest = json.loads((copy.path / "manifest.json").read_text())
    assert manifest["source"] == copy.pinned
    weights = (checkpoint / "model.safetensors").read_bytes()
    assert manifest["files"]["model.safetensors"]["sha256"] == hashlib.sha256(weights).hexdigest()
    assert (copy.path / "model.safetensors").read_bytes() == weights


def test_a_pinned_model_is_served_without_asking_anybody_again(hub: FileServer, fetch: Fetch) -> None:
    address = f"hf://org/Tiny-Llama@{COMMIT}"
    first = fetch(address)
    hub.asked.clear()
    assert fetch(address) == first
    assert hub.asked == []


def test_the_token_of_a_file_opens_a_closed_repository(
    hub: FileServer, fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    with pytest.raises(CheckpointError, match="HF_TOKEN"):
        fetch("hf://org/Tiny-Llama")
    (tmp_path / "token").write_text("hf_secret\n")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "token"))
    assert names(fetch("hf://org/Tiny-Llama")) >= SERVED


def test_weights_that_are_not_what_the_hub_says_are_refused_and_removed(
    hub: FileServer, fetch: Fetch, tmp_path: Path
) -> None:
    hub.lies_about["model.safetensors"] = "0" * 64
    with pytest.raises(CheckpointError, match=r"model\.safetensors has the sha256"):
        fetch("hf://org/Tiny-Llama")
    assert not list((tmp_path / "data").rglob("model.safetensors*"))


def test_a_repository_with_several_files_of_gguf_says_which(
    hub: FileServer, fetch: Fetch, checkpoint: Path
) -> None:
    (checkpoint / "model.safetensors").unlink()
    (checkpoint / "q4.gguf").write_bytes(b"gguf")
    with pytest.raises(CheckpointError, match=r"it has q4.gguf: name one: hf://org/Tiny/FILE.gguf"):
        fetch("hf://org/Tiny")
    copy = fetch("hf://org/Tiny@main/q4.gguf")
    assert copy.path.name == "q4.gguf"
    assert copy.path.read_bytes() == b"gguf"


def test_a_revision_that_is_not_there_is_named(hub: FileServer, fetch: Fetch) -> None:
    with pytest.raises(CheckpointError, match="no revision 'v9'"):
        fetch("hf://org/Tiny-Llama@v9")


def pinned_folder(web: FileServer, checkpoint: Path) -> str:
    """The folder's address with the hash of its files: names, sizes and hashes, in order."""
    lines = (
        f"{path.name} {path.stat().st_size} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in sorted(checkpoint.iterdir())
        if path.name in SERVED
    )
    return f"{web.url}/#sha256={hashlib.sha256(''.join(lines).encode()).hexdigest()}"


def test_a_folder_of_a_web_server_is_fetched_by_its_sums(
    web: FileServer, fetch: Fetch, checkpoint: Path, tmp_path: Path, progress: RecordedProgress
) -> None:
    write_sums(checkpoint)
    nested = checkpoint.parent / "nested"
    nested.mkdir()
    checkpoint.rename(nested / "llama")
    web.root = nested
    address = pinned_folder(web, nested / "llama").replace("/#", "/llama/#")
    copy = fetch(address)
    assert names(copy) == SERVED | {"manifest.json"}
    assert copy.pinned == address
    found = resolve_checkpoint(local_path(address, tmp_path / "data", progress), tmp_path / "data", progress)
    assert found.name == "llama"
    hashed = progress.count("Hashing")
    fingerprint(found, tmp_path / "data", progress)
    assert progress.count("Hashing") == hashed, "what was hashed on arrival is not hashed again"


def test_files_that_differ_from_their_sums_are_refused_and_removed(
    web: FileServer, fetch: Fetch, checkpoint: Path, tmp_path: Path
) -> None:
    write_sums(checkpoint)
    with (checkpoint / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x55")
    address = pinned_folder(web, checkpoint)
    checkpoint.parent.joinpath("Tiny-Llama").rename(checkpoint.parent / "x")
    (checkpoint.parent / "root").mkdir()
    (checkpoint.parent / "x").rename(checkpoint.parent / "root" / "x")
    web.root = checkpoint.parent / "root"
    with pytest.raises(CheckpointError, match="it was removed"):
        fetch(address.replace("/#", "/x/#"))
    assert not list((tmp_path / "data").rglob("model.safetensors*"))


def one_file(web: FileServer, content: bytes) -> str:
    (web.root / "tiny.gguf").write_bytes(content)
    return f"{web.url}/tiny.gguf#sha256={hashlib.sha256(content).hexdigest()}"


def test_one_file_comes_in_parts_and_a_broken_line_costs_only_a_part(
    web: FileServer, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged_download, "PART_BYTES", 10_000)
    monkeypatch.setattr(ranged_download, "PAUSE_S", 0.0)
    content = bytes(range(256)) * 400
    address = one_file(web, content)
    web.breaks_after, web.breaks_left = 5_000, 3
    assert fetch(address).path.read_bytes() == content
    assert len({wanted for path, wanted in web.asked if path == "/tiny.gguf"}) == 12


def test_a_server_without_ranges_serves_whole_files(web: FileServer, fetch: Fetch) -> None:
    web.knows_ranges = False
    assert fetch(one_file(web, b"x" * 50_000)).path.read_bytes() == b"x" * 50_000


def test_a_wrong_checksum_in_the_address_is_refused_and_the_file_removed(
    web: FileServer, fetch: Fetch, tmp_path: Path
) -> None:
    one_file(web, b"other bytes")
    with pytest.raises(CheckpointError, match="it was removed"):
        fetch(f"{web.url}/tiny.gguf#sha256={'0' * 64}")
    assert not list((tmp_path / "data").rglob("*.gguf*"))


def test_what_was_fetched_before_is_served_when_nobody_answers(
    hub: FileServer, fetch: Fetch, monkeypatch: pytest.MonkeyPatch, progress: RecordedProgress
) -> None:
    first = fetch("hf://org/Tiny-Llama@main")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert fetch("hf://org/Tiny-Llama@main") == first
    assert any("serving the copy fetched earlier" in label for label in progress.labels)
    with pytest.raises(CheckpointError, match="cannot be reached"):
        fetch("hf://org/never-fetched")


def test_a_copy_that_was_damaged_is_fetched_again(web: FileServer, fetch: Fetch) -> None:
    copy = fetch(one_file(web, b"whole"))
    copy.path.write_bytes(b"short of it")
    assert fetch(copy.pinned) == copy
    assert copy.path.read_bytes() == b"whole"


def test_a_file_address_is_served_where_it_lies(fetch: Fetch, checkpoint: Path) -> None:
    assert fetch(f"file://{checkpoint}") == LocalCopy(checkpoint, f"file://{checkpoint}")
    with pytest.raises(CheckpointError, match="was not found"):
        fetch(f"file://{checkpoint}/nowhere")
    with pytest.raises(CheckpointError, match="has the sha256"):
        fetch(f"file://{checkpoint}#sha256={'0' * 64}")


def test_too_small_a_disk_is_noticed_before_the_download(
    hub: FileServer, fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.packaging.remote.copies.SPARE_DISK_BYTES", 10**18)
    with pytest.raises(CheckpointError, match="MB are needed"):
        fetch("hf://org/Tiny-Llama")
