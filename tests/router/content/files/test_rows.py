from __future__ import annotations

import threading

import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.files import rows
from router.content.files.model import PIECE_BYTES, StoredFile
from router.content.storage_quota import stored_bytes
from router.store.database import Store

NOW_S = 1_794_740_000.0


def stored(
    store: Store,
    file_id: str,
    content: bytes = b"x",
    *,
    organisation_id: str = "org-1",
    created_s: float = NOW_S,
    expires_s: float | None = None,
    purpose: str = "batch",
) -> StoredFile:
    file = StoredFile(file_id, organisation_id, "a", purpose, len(content), created_s, expires_s)
    with store.begin() as connection:
        rows.begin(connection, file)
        for number in range(file.piece_count):
            piece = content[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
            rows.add_piece(connection, file_id, number, piece)
        rows.finish(connection, file_id, len(content), "sha")
    return file


def test_any_range_of_a_file_can_be_read(store: Store) -> None:
    content = bytes(range(256)) * (PIECE_BYTES // 128)  # two pieces
    stored(store, "file-1", content + b"end")
    with store.read() as connection:
        for start, size in ((0, 1), (PIECE_BYTES - 5, 10), (2 * PIECE_BYTES, 3), (7, 2 * PIECE_BYTES - 4)):
            part = rows.read_range(connection, "file-1", start, size)
            assert part == (content + b"end")[start : start + size]


def test_a_file_is_seen_once_it_is_whole_by_its_own_organisation_until_it_expires(store: Store) -> None:
    stored(store, "file-1", expires_s=NOW_S + 10)
    with store.begin() as connection:
        rows.begin(connection, StoredFile("file-2", "org-1", "a", "batch", 1, NOW_S))
    with store.read() as connection:
        assert rows.find(connection, "org-1", "file-1", NOW_S).sha256 == "sha"
        assert [file.id for file in rows.page(connection, "org-1", NOW_S, limit=10)] == ["file-1"]
        assert rows.page(connection, "org-1", NOW_S + 10, limit=10) == []
        assert rows.page(connection, "org-2", NOW_S, limit=10) == []
        for organisation_id, file_id, now_s in (
            ("org-1", "file-2", NOW_S),
            ("org-2", "file-1", NOW_S),
            ("org-1", "file-1", NOW_S + 10),
            ("org-1", "file\0", NOW_S),
            ("org-1", "x" * 1000, NOW_S),
        ):
            with pytest.raises(InflightError) as missing:
                rows.find(connection, organisation_id, file_id, now_s)
            assert missing.value.kind is ErrorKind.NOT_FOUND


@pytest.mark.parametrize("ascending", [True, False])
def test_pages_follow_each_other_without_gap_or_overlap(store: Store, ascending: bool) -> None:
    for number in range(7):
        stored(store, f"file-{number}", created_s=NOW_S + number // 3)
    stored(store, "file-other", purpose="user_data")
    seen: list[str] = []
    after: str | None = None
    with store.read() as connection:
        while page := rows.page(
            connection, "org-1", NOW_S, limit=2, after=after, ascending=ascending, purpose="batch"
        ):
            seen += [file.id for file in page]
            after = seen[-1]
    expected = [f"file-{number}" for number in range(7)]
    assert seen == (expected if ascending else expected[::-1])


def test_a_quota_is_not_exceeded_by_uploads_at_the_same_moment(store: Store) -> None:
    refused: list[str] = []

    def upload(number: int) -> None:
        file = StoredFile(f"file-{number}", "org-1", "a", "batch", 40, NOW_S)
        try:
            with store.begin() as connection:
                rows.begin(connection, file, most_bytes=100)
        except InflightError as error:
            refused.append(f"{error.kind.http_status} {error.message}")

    threads = [threading.Thread(target=upload, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 6
    assert all(message.startswith("413 ") for message in refused)
    assert "take 80 of its 100 bytes of storage, and this one needs 40" in refused[-1]
    with store.begin() as connection:
        assert stored_bytes(connection, "org-1") == 80
        rows.begin(connection, StoredFile("file-9", "org-2", "a", "batch", 40, NOW_S), most_bytes=100)


def test_expired_and_half_uploaded_files_are_swept(store: Store) -> None:
    stored(store, "file-kept")
    stored(store, "file-old", expires_s=NOW_S)
    with store.begin() as connection:
        rows.begin(connection, StoredFile("file-half", "org-1", "a", "batch", 1, NOW_S - 86_400))
        rows.begin(connection, StoredFile("file-coming", "org-1", "a", "batch", 1, NOW_S - 10))
    with store.begin() as connection:
        assert rows.sweep(connection, NOW_S) == 2
        assert rows.sweep(connection, NOW_S) == 0
        assert stored_bytes(connection, "org-1") == 2
        with pytest.raises(InflightError, match="is gone"):
            rows.read_piece(connection, "file-old", 0)
