"""What comes from an address is data: no release of it runs the files of whoever controls the address."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from tests.fakes.file_server import FileServer, file_server
from tests.launcher.commands.release.conftest import SYNTHETIC, Shell
from tests.launcher.commands.release.materials import BERT, write_checkpoint, write_triton_model

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVIL = """
backend: "evil"
max_batch_size: 8
input [ { name: "x", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "y", data_type: TYPE_FP32, dims: [ 1 ] } ]
"""
CODE = ("config.pbtxt", "1/libtriton_evil.so", "1/MODEL.PY", "1/model.py", "x.pkl", "x.sh", "modeling.py")
SERVED = {"config.json", "tokenizer.json", "generation_config.json", "model.safetensors"}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """The Hub, and a web server of the same files."""
    (tmp_path / "there" / "repository").mkdir(parents=True)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    with file_server(tmp_path / "there" / "repository") as files:
        monkeypatch.setenv("HF_ENDPOINT", files.url)
        yield files


def put(place: FileServer, config: dict[str, Any] | None = None) -> None:
    place.root.rmdir()
    write_checkpoint(place.root, config)
    put_code(place)


def put_code(place: FileServer) -> None:
    for name in CODE:
        (place.root / name).parent.mkdir(exist_ok=True)
        (place.root / name).write_text(EVIL if name == "config.pbtxt" else "runs code")


def fetched(inflight: Shell) -> set[str]:
    found = [path for path in inflight.data_dir.glob("models*/*/*/**/*") if path.is_file()]
    return {path.name for path in found} - {"manifest.json"}


@pytest.mark.parametrize(("config", "kind"), [(None, "text"), (BERT, "embeddings")])
def test_a_repository_with_a_backend_of_its_own_becomes_what_its_config_says_without_its_code(
    place: FileServer, inflight: Shell, config: dict[str, Any] | None, kind: str
) -> None:
    put(place, config)
    options = SYNTHETIC if kind == "text" else ()
    said = inflight("add", "m", "hf://org/repository", *options)
    assert "not fetched: 1/MODEL.PY, 1/libtriton_evil.so" in said
    assert inflight.json("show", "m@1")["manifest"]["kind"] == kind
    assert fetched(inflight) == SERVED
    assert not [name for name in inflight.files() if "evil" in name or name.endswith((".PY", ".pkl", ".sh"))]


def test_a_folder_of_a_web_server_is_held_to_the_same_list(place: FileServer, inflight: Shell) -> None:
    put(place)
    paths = sorted(path for path in place.root.rglob("*") if path.is_file())
    facts = [(str(path.relative_to(place.root)), path.stat().st_size, sha256(path)) for path in paths]
    (place.root / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, _, digest in facts))
    lines = [f"{name} {size} {digest}\n" for name, size, digest in facts if name in SERVED]
    address = f"{place.url}/repository/#sha256={hashlib.sha256(''.join(lines).encode()).hexdigest()}"
    place.root = place.root.parent
    inflight("add", "m", address, *SYNTHETIC)
    assert inflight.json("show", "m@1")["manifest"]["source"] == address
    assert fetched(inflight) == SERVED
    # A pin of 0.8.0 has all files in it; they are looked at, and not kept.
    whole = "".join(f"{name} {size} {digest}\n" for name, size, digest in facts)
    older = address.rpartition("=")[0] + "=" + hashlib.sha256(whole.encode()).hexdigest()
    (inflight.data_dir / "models").rename(inflight.data_dir / "away")
    inflight("add", "m", older, *SYNTHETIC)
    assert inflight.json("show", "m@2")["manifest"]["source"] == older
    assert fetched(inflight) == SERVED


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_repository_of_pickles_is_refused_and_says_why(place: FileServer, inflight: Shell) -> None:
    for name in ("config.json", "tokenizer.json", "pytorch_model.bin", "README.md"):
        (place.root / name).write_text("{}")
    refused = inflight.refusal("add", "m", "hf://org/repository")
    assert "has no weights as *.safetensors, *.gguf or *.onnx: it has README.md, pytorch_model.bin" in refused
    assert fetched(inflight) == set()


def test_a_triton_model_at_an_address_is_refused_with_both_ways_to_have_it(
    place: FileServer, inflight: Shell
) -> None:
    put_code(place)
    refused = inflight.refusal("add", "m", "hf://org/repository")
    assert "copy it to a folder of your own" in refused
    assert "--runs-code" in refused
    assert fetched(inflight) == set()


def test_code_comes_from_an_address_after_it_was_allowed_twice_and_that_is_on_record(
    place: FileServer, inflight: Shell
) -> None:
    write_triton_model(place.root)
    command = ["add", "doubling", "hf://org/repository", "--runs-code"]
    answered = inflight.ask_with("n\n", *command)
    assert answered.exit_code == 1
    assert "will run code as Triton's user" in answered.output
    assert place.asked == []
    answered = inflight.ask_with("y\n", *command)
    assert answered.exit_code == 0, answered.output
    manifest = inflight.json("show", "doubling@1")["manifest"]
    assert manifest["kind"] == "tensors"
    assert (inflight.repository / "doubling.1" / "1" / "model.py").read_text() == "VERSION = 10\n"
    assert noted(inflight) == [("doubling", {"source": "hf://org/repository"})]
    inflight(*command, "--yes")
    assert len(noted(inflight)) == 2
    # It was allowed for these releases; the same address without the word is data as before.
    assert "--runs-code" in inflight.refusal("add", "doubling", "hf://org/repository")


def noted(inflight: Shell) -> list[tuple[str, dict[str, Any]]]:
    import sqlalchemy as sql

    from router.store.schema import audit

    with inflight.store() as store, store.read() as connection:
        asked = sql.select(audit.c.target, audit.c.detail).where(audit.c.action == "release.allow_code")
        rows = connection.execute(asked).all()
    return [
        (row.target, row.detail if isinstance(row.detail, dict) else json.loads(row.detail)) for row in rows
    ]


@pytest.mark.parametrize("name", ["1/libtriton_python.so", "LibTriton_Evil.SO", "deeper/libtriton_x.so.1"])
def test_a_backends_library_never_comes_from_an_address(
    place: FileServer, inflight: Shell, name: str
) -> None:
    write_triton_model(place.root)
    (place.root / name).parent.mkdir(parents=True, exist_ok=True)
    (place.root / name).write_text("a library")
    refused = inflight.refusal("add", "m", "hf://org/repository", "--runs-code", "--yes")
    assert f"{name}: a backend's library is never fetched" in refused
    assert fetched(inflight) == set()


@pytest.mark.parametrize(
    ("line", "said"),
    [('runtime: "ours.so"', "cannot bring its own backend"), ("", "needs the backend 'evil'")],
)
def test_no_config_makes_another_file_the_backend(
    place: FileServer, inflight: Shell, line: str, said: str
) -> None:
    write_triton_model(place.root, f"{EVIL.replace('evil', 'python') if line else EVIL}{line}\n")
    (place.root / "10" / "ours.so").write_text("a library")
    assert said in inflight.refusal("add", "m", "hf://org/repository", "--runs-code", "--yes")
    assert inflight.files() == [".lock"]


def test_a_copy_that_is_named_by_its_path_is_still_from_its_address(
    place: FileServer, inflight: Shell
) -> None:
    put(place)
    inflight("add", "m", "hf://org/repository", *SYNTHETIC)
    (copy,) = (path.parent for path in inflight.data_dir.glob("models/*/*/config.json"))
    (copy / "config.pbtxt").write_text(EVIL)  # 0.8.0 fetched it
    inflight("add", "m", str(copy), *SYNTHETIC)
    assert inflight.json("show", "m@2")["manifest"]["kind"] == "text"


def test_a_checkpoint_needs_no_such_word(place: FileServer, inflight: Shell) -> None:
    place.root.rmdir()
    write_checkpoint(place.root)
    refused = inflight.refusal("add", "m", "hf://org/repository", "--runs-code", "--yes")
    assert "add it without --runs-code" in refused
    assert inflight.files() == []


def test_the_word_is_for_addresses_alone(inflight: Shell, tmp_path: Path) -> None:
    model = write_triton_model(tmp_path / "doubling")
    assert "--runs-code is for an address" in inflight.refusal("add", "d", str(model), "--runs-code", "--yes")
    inflight("add", "d", f"file://{model}")
    assert inflight.json("show", "d@1")["manifest"]["kind"] == "tensors"
