"""Which blocks go from one engine to another, by what vLLM's scheduler says of its steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from python_backend.engine.runtimes.vllm.kv_files import KvFiles
from python_backend.engine.runtimes.vllm.transfer_book import Save, TransferBook

BLOCK = 4
FOR_ANOTHER = {"do_remote_decode": True}


def request(prompt: int, params: dict[str, Any] | None, **more: Any) -> Any:
    values = {"request_id": "r", "cache_salt": "s", "lora_request": None, **more}
    return SimpleNamespace(prompt_token_ids=list(range(prompt)), kv_transfer_params=params, **values)


def step(*, new: Sequence[Any] = (), cached: Sequence[Any] = (), resumed: Sequence[str] = ()) -> Any:
    """Rows of an id, blocks, tokens computed before, and tokens of this step."""
    rows = [*new, *cached]
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=each, block_ids=(ids,), num_computed_tokens=done)
            for each, ids, done, _ in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[row[0] for row in cached],
            new_block_ids=[(row[1],) if row[1] else None for row in cached],
            num_computed_tokens=[row[2] for row in cached],
            resumed_req_ids=set(resumed),
        ),
        num_scheduled_tokens={row[0]: row[3] for row in rows},
    )


def book(folder: Path) -> tuple[TransferBook, KvFiles]:
    files = KvFiles(folder, 1)
    return TransferBook(files, BLOCK, 1), files


def given_away(folder: Path, prompt: int = 10, **more: Any) -> dict[str, Any]:
    """What an engine says that has computed a prompt for another."""
    producer, files = book(folder)
    asked = request(prompt, FOR_ANOTHER, **more)
    producer.allocated(asked, [], 0)
    saves, _ = producer.orders(step(new=[("r", [7, 8, 9], 0, prompt)]))
    for save in saves:
        files.part(save.transfer, 0, save.first).touch()
        files.finish(save.transfer, 0)
    told = producer.finished(asked, True)
    assert told is not None
    return told


@given(chunks=st.lists(st.integers(1, 9), min_size=1, max_size=8), cached_blocks=st.integers(0, 3))
def test_a_prompt_is_saved_once_and_whole_however_it_is_computed(
    tmp_path_factory: Any, chunks: list[int], cached_blocks: int
) -> None:
    """But for its last block, which has the token that whoever answers computes."""
    prompt = cached_blocks * BLOCK + sum(chunks)
    producer, _ = book(tmp_path_factory.mktemp("kv"))
    asked = request(prompt, FOR_ANOTHER)
    ids = list(range(100, 100 + -(-prompt // BLOCK)))
    producer.allocated(asked, [], 0)
    saves: list[Save] = []
    done = cached_blocks * BLOCK
    held = 0
    for number, chunk in enumerate(chunks):
        needed = -(-(done + chunk) // BLOCK)
        row = ("r", ids[held:needed], done, chunk)
        saves += producer.orders(step(cached=[row]) if number else step(new=[row]))[0]
        done, held = done + chunk, needed
    whole = (prompt - 1) // BLOCK
    saved = [block for save in saves for block in save.block_ids]
    assert saved == ids[:whole]
    assert [save.is_last for save in saves] == ([False] * (len(saves) - 1) + [True] if whole else [])
    assert [save.first for save in saves] == [
        sum(len(before.block_ids) for before in saves[:number]) for number in range(len(saves))
    ]
    assert (producer.finished(asked, True) is not None) == bool(whole)


def test_a_prompt_that_was_preempted_is_saved_from_its_new_blocks(tmp_path: Path) -> None:
    producer, _ = book(tmp_path)
    producer.allocated(request(12, FOR_ANOTHER), [], 0)
    (first,), _ = producer.orders(step(new=[("r", [1], 0, 4)]))
    assert (first.first, first.block_ids) == (0, (1,))
    assert producer.orders(step(cached=[("r", [5], 0, 4)], resumed=["r"])) == ([], [])
    (last,), _ = producer.orders(step(cached=[("r", [6, 7], 4, 8)]))
    assert (last.first, last.block_ids, last.is_last) == (1, (6,), True)


def test_a_prompt_that_was_aborted_leaves_nothing(tmp_path: Path) -> None:
    producer, _ = book(tmp_path)
    asked = request(10, FOR_ANOTHER)
    producer.allocated(asked, [], 0)
    producer.orders(step(new=[("r", [1, 2, 3], 0, 10)]))
    assert producer.finished(asked, False) is None
    assert not list(tmp_path.iterdir())


def test_what_another_engine_computed_is_loaded_into_the_blocks_that_are_not_there(tmp_path: Path) -> None:
    taker, _ = book(tmp_path)
    asked = request(10, given_away(tmp_path))
    assert [taker.to_load(asked, 0), taker.to_load(asked, BLOCK), taker.to_load(asked, 0)] == [8, 4, 8]
    taker.allocated(asked, [21, 22, 23], 4)
    _, (load,) = taker.orders(step())
    assert (load.request_id, load.first, load.block_ids) == ("r", 1, (22,))
    assert taker.orders(step()) == ([], [])


def test_a_load_is_tried_once_and_what_is_left_is_removed_at_the_end(tmp_path: Path) -> None:
    taker, _ = book(tmp_path)
    asked = request(10, given_away(tmp_path))
    taker.allocated(asked, [21, 22, 23], taker.to_load(asked, 0))
    assert taker.to_load(asked, 0) == 0
    taker.allocated(asked, [21, 22, 23], 0)
    assert taker.finished(asked, True) is None
    assert not list(tmp_path.iterdir())


def test_who_had_all_of_it_removes_what_was_brought(tmp_path: Path) -> None:
    taker, _ = book(tmp_path)
    asked = request(10, given_away(tmp_path))
    assert taker.to_load(asked, 8) == 0
    assert taker.finished(asked, True) is None
    assert not list(tmp_path.iterdir())


def test_keys_and_values_of_another_prompt_tenant_or_adapter_are_not_taken(tmp_path: Path) -> None:
    taker, _ = book(tmp_path)
    told = given_away(tmp_path)
    sql = SimpleNamespace(lora_name="sql#1")
    assert taker.to_load(request(11, told), 0) == 0
    assert taker.to_load(request(10, told, cache_salt="other"), 0) == 0
    assert taker.to_load(request(10, told, lora_request=sql), 0) == 0
    assert taker.to_load(request(10, told), 0) == 8
    adapted = given_away(tmp_path, lora_request=sql)
    assert taker.to_load(request(10, adapted, lora_request=SimpleNamespace(lora_name="sql#4")), 0) == 8


def test_requests_that_say_nothing_of_transfers_are_left_alone(tmp_path: Path) -> None:
    taker, _ = book(tmp_path)
    for params in (None, {}, {"do_remote_prefill": True}, {"do_remote_prefill": True, "transfer": 7}):
        asked = request(10, params)
        assert taker.to_load(asked, 0) == 0
        taker.allocated(asked, [1, 2, 3], 0)
        assert taker.orders(step(new=[("r", [1, 2, 3], 0, 10)])) == ([], [])
        assert taker.finished(asked, True) is None
