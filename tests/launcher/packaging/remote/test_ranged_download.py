"""Downloads in parts: put together rightly, gone on with after any interruption, never mixed."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.packaging.remote import ranged_download
from launcher.packaging.remote.ranged_download import RangedDownload
from launcher.packaging.remote.source import RemoteFile, SourceError, Unreachable

CONTENT = bytes(range(256)) * 400
PART = 10_000


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranged_download, "PART_BYTES", PART)
    monkeypatch.setattr(ranged_download, "PAUSE_S", 0.0)


class Bytes:
    """`fails` says of each part's beginning how often it cannot be had."""

    def __init__(self, content: bytes = CONTENT, fails: dict[int, int] | None = None) -> None:
        self.content = content
        self.fails = dict(fails or {})
        self.read_parts: list[int] = []
        self._lock = threading.Lock()

    @property
    def file(self) -> RemoteFile:
        return RemoteFile(
            "weights/model.safetensors", len(self.content), hashlib.md5(self.content).hexdigest()
        )

    def read(self, file: RemoteFile, begin: int, end: int) -> Iterator[bytes]:
        with self._lock:
            self.read_parts.append(begin)
            self.fails[begin] = self.fails.get(begin, 0) - 1
            is_broken = self.fails[begin] >= 0
        yield self.content[begin : (begin + end) // 2]
        if is_broken:
            raise Unreachable("the line is dead")
        yield self.content[(begin + end) // 2 : end]


def fetch(place: Bytes, into: Path, told: list[int] | None = None) -> None:
    RangedDownload(place, (told if told is not None else []).append, workers=3).run([place.file], into)


def test_parts_become_the_file(tmp_path: Path) -> None:
    told: list[int] = []
    fetch(Bytes(), tmp_path, told)
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["model.safetensors"]
    assert (tmp_path / "weights/model.safetensors").read_bytes() == CONTENT
    assert told[0] == 0
    assert told == sorted(told)
    assert told[-1] == len(CONTENT)


def test_a_part_that_breaks_off_is_asked_for_again(tmp_path: Path) -> None:
    place = Bytes(fails={0: 1, 3 * PART: 2})
    fetch(place, tmp_path)
    assert (tmp_path / "weights/model.safetensors").read_bytes() == CONTENT
    assert place.read_parts.count(3 * PART) == 3


def test_the_next_try_asks_only_for_the_parts_that_are_missing(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        fetch(Bytes(fails={5 * PART: 100}), tmp_path)
    assert not (tmp_path / "weights/model.safetensors").exists()
    place, told = Bytes(), list[int]()
    fetch(place, tmp_path, told)
    assert (tmp_path / "weights/model.safetensors").read_bytes() == CONTENT
    assert 5 * PART in place.read_parts
    assert len(place.read_parts) < len(CONTENT) // PART
    assert told[0] > 0


def test_a_file_that_has_changed_meanwhile_is_fetched_from_its_beginning(tmp_path: Path) -> None:
    with pytest.raises(Unreachable):
        fetch(Bytes(fails={5 * PART: 100}), tmp_path)
    other = Bytes(CONTENT[::-1])
    fetch(other, tmp_path)
    assert (tmp_path / "weights/model.safetensors").read_bytes() == CONTENT[::-1]
    assert len(set(other.read_parts)) == -(-len(CONTENT) // PART)


def test_a_finished_file_is_not_fetched_again(tmp_path: Path) -> None:
    fetch(Bytes(), tmp_path)
    again = Bytes()
    fetch(again, tmp_path)
    assert again.read_parts == []


def test_a_refusal_ends_everything_at_once(tmp_path: Path) -> None:
    class Refusing(Bytes):
        def read(self, file: RemoteFile, begin: int, end: int) -> Iterator[bytes]:
            if begin >= 0:
                raise SourceError("changed")
            yield b""

    with pytest.raises(SourceError, match="changed"):
        fetch(Refusing(), tmp_path)


def test_an_empty_file_is_made_without_asking(tmp_path: Path) -> None:
    place = Bytes(b"")
    fetch(place, tmp_path)
    assert (tmp_path / "weights/model.safetensors").read_bytes() == b""
    assert place.read_parts == []


@pytest.mark.parametrize("name", ["../etc/passwd", "/etc/passwd", "a/../../b", ""])
def test_a_file_outside_of_the_model_is_refused(name: str) -> None:
    with pytest.raises(SourceError, match="outside the model"):
        RemoteFile(name, 1)
