from __future__ import annotations

import json
import threading

import pytest
import sqlalchemy as sql

from router.content.batches import claims, rows
from router.content.batches.claims import Answer, Claim, Line, Returned
from router.content.batches.decisions import Event, Life, Status
from router.content.batches.rows import Batch
from router.content.files import rows as file_rows
from router.content.files.model import StoredFile
from router.store import content_tables
from router.store.content_tables import batch_lines
from router.store.database import Store

NOW_S = 1_794_740_000.0
LEASE_S = 30.0


def running_batch(store: Store, count: int, batch_id: str = "batch_1") -> Batch:
    """One in progress, whose lines ask for their own numbers."""
    texts = [json.dumps({"custom_id": str(n), "body": {"n": n}}).encode() for n in range(count)]
    data = b"\n".join(texts)
    file = StoredFile(f"file-{batch_id}", "org-1", "in", "batch", len(data), NOW_S)
    batch = Batch(
        batch_id, "org-1", "key-1", "/v1/completions", file.id, Life(Status.VALIDATING, NOW_S, NOW_S + 86_400)
    )
    starts = [sum(len(text) + 1 for text in texts[:n]) for n in range(count)]
    with store.begin() as connection:
        file_rows.begin(connection, file)
        file_rows.add_piece(connection, file.id, 0, data)
        file_rows.finish(connection, file.id, len(data), "")
        rows.insert(connection, batch)
        lines = [Line(n + 1, str(n), starts[n], len(texts[n])) for n in range(count)]
        claims.add(connection, batch_id, lines)
        moved = rows.advance(connection, batch_id, Event.CHECKED, NOW_S, total_count=count)
    assert moved is not None
    return moved


def take(store: Store, batch: Batch, count: int, worker: str = "a", now_s: float = NOW_S) -> list[Claim]:
    with store.begin() as connection:
        return claims.take(connection, batch, count, worker, now_s, LEASE_S)


def answer(store: Store, worker: str, *taken: Claim, succeeded: bool = True) -> None:
    answers = [Answer(claim, succeeded, f"{worker} {claim.number}", 7, 2, 5) for claim in taken]
    with store.begin() as connection:
        claims.answer(connection, worker, answers)


def found(store: Store, batch: Batch) -> Batch:
    with store.read() as connection:
        return rows.find(connection, batch.organisation_id, batch.id)


def test_lines_are_claimed_in_order_with_their_bodies_from_the_file(store: Store) -> None:
    batch = running_batch(store, 5)
    first, rest = take(store, batch, 2), take(store, batch, 10, "b")
    assert [claim.number for claim in first] == [1, 2]
    assert [claim.number for claim in rest] == [3, 4, 5]
    assert [json.loads(claim.body) for claim in rest] == [{"n": 2}, {"n": 3}, {"n": 4}]
    assert take(store, batch, 10) == []


def test_routers_that_claim_at_the_same_moment_never_share_a_line(store: Store) -> None:
    batch = running_batch(store, 40)
    taken: list[int] = []

    def work(worker: str) -> None:
        while mine := take(store, batch, 3, worker):
            taken.extend(claim.number for claim in mine)

    threads = [threading.Thread(target=work, args=(f"router-{number}",)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A lock that was skipped may have left some to a later round.
    while mine := take(store, batch, 10):
        taken.extend(claim.number for claim in mine)
    assert sorted(taken) == list(range(1, 41))


def test_answers_are_counted_together_with_their_tokens(store: Store) -> None:
    batch = running_batch(store, 3)
    good, bad, _ = take(store, batch, 3)
    answer(store, "a", good)
    answer(store, "a", bad, succeeded=False)
    now = found(store, batch)
    assert (now.completed_count, now.failed_count, now.unanswered) == (1, 1, 1)
    assert (now.prompt_tokens, now.cached_tokens, now.completion_tokens) == (14, 4, 10)


def test_a_line_is_answered_once_though_two_routers_ran_it(store: Store) -> None:
    batch = running_batch(store, 1)
    [slow] = take(store, batch, 1, "slow")
    assert take(store, batch, 1, "fast", NOW_S + LEASE_S) == []
    [again] = take(store, batch, 1, "fast", NOW_S + LEASE_S + 1)
    answer(store, "slow", slow)
    assert found(store, batch).completed_count == 0
    answer(store, "fast", again)
    answer(store, "slow", slow)
    answer(store, "fast", again)
    assert found(store, batch).completed_count == 1
    with store.read() as connection:
        assert connection.scalars(sql.select(batch_lines.c.answer)).all() == ["fast 1"]


def test_a_renewed_lease_does_not_lapse(store: Store) -> None:
    batch = running_batch(store, 1)
    take(store, batch, 1, "a")
    with store.begin() as connection:
        claims.renew(connection, "a", [batch.id], NOW_S + 20, LEASE_S)
    assert take(store, batch, 1, "b", NOW_S + 40) == []


def test_a_returned_line_can_be_claimed_at_once_and_keeps_its_attempts(store: Store) -> None:
    batch = running_batch(store, 1)
    [claim] = take(store, batch, 1, "a")
    with store.begin() as connection:
        claims.give_back(connection, "b", [Returned(claim, 5)])
        claims.give_back(connection, "a", [Returned(claim, 1)])
    [again] = take(store, batch, 1, "b")
    assert again.attempts == 1


def test_the_rest_is_dropped_only_after_every_lease_has_lapsed(store: Store) -> None:
    batch = running_batch(store, 3)
    [claim] = take(store, batch, 1)
    with store.begin() as connection:
        assert not claims.drop_rest(connection, batch.id, NOW_S)
        assert claims.drop_rest(connection, batch.id, NOW_S + LEASE_S + 1)
    answer(store, "a", claim)
    assert found(store, batch).completed_count == 0
    assert take(store, batch, 3) == []


def test_a_stage_is_held_by_one_router_until_it_ends_or_its_lease_does(store: Store) -> None:
    batch = running_batch(store, 1)
    with store.begin() as connection:
        assert rows.hold(connection, batch, "a", NOW_S, LEASE_S)
        assert rows.hold(connection, batch, "a", NOW_S, LEASE_S)
        assert not rows.hold(connection, batch, "b", NOW_S + 5, LEASE_S)
        assert rows.hold(connection, batch, "b", NOW_S + LEASE_S + 1, LEASE_S)
        rows.advance(connection, batch.id, Event.ALL_ANSWERED, NOW_S)
        assert not rows.hold(connection, batch, "b", NOW_S, LEASE_S)


def kept(connection: sql.Connection, organisation_id: str) -> tuple[int, int, int]:
    exported = content_tables.export_files(connection, organisation_id)
    pieces = list(content_tables.pieces(connection, organisation_id))
    return len(exported["files"]), len(exported["batches"]), len(pieces)


@pytest.mark.parametrize("organisation_id", ["org-1", "org-2"])
def test_an_organisation_is_exported_and_deleted_without_touching_another(
    store: Store, organisation_id: str
) -> None:
    batch = running_batch(store, 3)
    with store.read() as connection:
        assert kept(connection, organisation_id) == ((1, 1, 1) if organisation_id == "org-1" else (0, 0, 0))
    with store.begin() as connection:
        content_tables.delete_files(connection, organisation_id)
    with store.read() as connection:
        left = kept(connection, "org-1")
        lines = connection.scalar(sql.select(sql.func.count()).select_from(batch_lines))
    if organisation_id == "org-1":
        assert (left, lines) == ((0, 0, 0), 0)
        with store.begin() as connection:
            assert rows.advance(connection, batch.id, Event.CANCEL_ASKED, NOW_S) is None
    else:
        assert (left, lines) == ((1, 1, 1), 3)


def test_a_line_whose_file_was_deleted_is_still_claimed(store: Store) -> None:
    batch = running_batch(store, 2)
    with store.begin() as connection:
        file_rows.drop(connection, batch.input_file_id)
    assert [claim.body for claim in take(store, batch, 2)] == [b"", b""]
