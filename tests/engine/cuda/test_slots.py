"""Places on the device: who holds one, and what the device is told about its blocks and tokens."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engine.cuda.pinned_memory import Staging
from python_backend.engine.cuda.slots import Slots
from python_backend.engine.request import GenerationRequest
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.sequence import Sequence

TABLE_BLOCKS, SCRATCH = 5, 99


def chunk(*blocks: int) -> Chunk:
    sequence = Sequence(0, 0, GenerationRequest([1, 2, 3], 4), 4)
    sequence.table.blocks.extend(blocks)
    return Chunk(sequence, 0, 3)


@pytest.fixture
def slots(device: str) -> Slots:
    return Slots(3, TABLE_BLOCKS, SCRATCH, torch.device(device))


@pytest.fixture
def staging(device: str) -> Staging:
    return Staging(torch.device(device), 1024)


def test_a_sequence_keeps_its_slot_and_only_newcomers_are_returned(slots: Slots) -> None:
    first, second = chunk(), chunk()
    ((slot, sequence),) = slots.take([first])
    assert sequence is first.sequence
    assert [newcomer for _, newcomer in slots.take([first, second])] == [second.sequence]
    assert slots.of(first.sequence) is slot
    assert slots.of(second.sequence).number != slot.number
    assert slots.take([first, second]) == []


def test_a_released_slot_is_reused_without_its_old_state(slots: Slots, staging: Staging) -> None:
    old, new = chunk(7, 8), chunk(4)
    slots.take([old])
    slots.update_tables([old], staging)
    slots.of(old.sequence).next_position = 3
    number = slots.of(old.sequence).number
    slots.release(old.sequence)
    slots.release(old.sequence)  # nothing more to release
    slots.take([new])
    slot = slots.of(new.sequence)
    assert (slot.number, slot.known_blocks, slot.next_position) == (number, 0, -1)
    slots.update_tables([new], staging)
    assert slots.block_tables[0, number, 0] == 4


def test_only_new_blocks_are_uploaded_to_the_device(slots: Slots, staging: Staging) -> None:
    first, second = chunk(10, 11), chunk(20)
    slots.take([first, second])
    slots.update_tables([first, second], staging)
    tables = slots.block_tables[0]
    tables[slots.of(first.sequence).number, 0] = 77  # would be seen if it were told again
    first.sequence.table.blocks.append(12)
    slots.update_tables([first, second], staging)
    assert tables[slots.of(first.sequence).number].tolist() == [77, 11, 12, SCRATCH, SCRATCH]
    assert tables[slots.of(second.sequence).number].tolist() == [20] + [SCRATCH] * 4
    assert tables[slots.dummy].tolist() == [SCRATCH] * TABLE_BLOCKS


def test_blocks_of_windows_are_told_in_tables_of_their_own(device: str, staging: Staging) -> None:
    slots = Slots(3, TABLE_BLOCKS, SCRATCH, torch.device(device), tables=3)
    only = chunk(10, 11, 12)
    table = only.sequence.table
    table.recent, table.gone = [(), (20, 30)], 1
    slots.take([only])
    slots.update_tables([only], staging)
    table.recent.append((21, 31))
    slots.update_tables([only], staging)
    found = slots.block_tables[:, slots.of(only.sequence).number].tolist()
    assert found[0] == [10, 11, 12, SCRATCH, SCRATCH]
    assert found[1:] == [[SCRATCH, 20, 21, SCRATCH, SCRATCH], [SCRATCH, 30, 31, SCRATCH, SCRATCH]]


def test_tokens_that_the_device_did_not_choose_are_written_to_their_slots(
    slots: Slots, staging: Staging
) -> None:
    slots.set_tokens({}, staging)
    slots.set_tokens({2: 50, 0: 40}, staging)
    assert slots.last_tokens.tolist() == [40, 0, 50, 0]


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5)), max_size=40))
def test_no_two_sequences_ever_share_a_slot(moves: list[tuple[bool, int]]) -> None:
    slots = Slots(3, 1, SCRATCH, torch.device("cpu"))
    chunks = [chunk() for _ in range(6)]
    holding: set[int] = set()
    for comes, index in moves:
        if comes and (len(holding) < 3 or index in holding):
            slots.take([chunks[index]])
            holding.add(index)
        elif not comes:
            slots.release(chunks[index].sequence)
            holding.discard(index)
        numbers = {slots.of(chunks[held].sequence).number for held in holding}
        assert len(numbers) == len(holding) == len(slots)
        assert numbers <= set(range(3))
