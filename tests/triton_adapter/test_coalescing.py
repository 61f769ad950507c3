from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from python_backend.engine.messages import SequenceEvent
from python_backend.triton_adapter.coalescing import Coalescer


def test_a_lone_token_leaves_on_its_own() -> None:
    coalescer = Coalescer()
    coalescer.put(SequenceEvent(1, [7]))
    pending = coalescer.take()
    assert pending is not None
    assert (pending.key, pending.token_ids, pending.finish_reason) == (1, [7], None)
    assert coalescer.take() is None


def test_tokens_that_pile_up_leave_together_and_the_longest_waiting_first() -> None:
    coalescer = Coalescer()
    for event in (SequenceEvent(1, [10]), SequenceEvent(2, [20]), SequenceEvent(1, [11, 12], "length")):
        coalescer.put(event)
    first, second = coalescer.take(), coalescer.take()
    assert first is not None
    assert second is not None
    assert (first.key, first.token_ids, first.finish_reason) == (1, [10, 11, 12], "length")
    assert (second.key, second.token_ids) == (2, [20])


@given(st.lists(st.one_of(st.tuples(st.integers(0, 3), st.integers(0, 9)), st.none())))
def test_no_token_is_lost_doubled_or_reordered(script: list[tuple[int, int] | None]) -> None:
    """None in the script is the sender coming round; whatever is left at the end is taken then."""
    coalescer = Coalescer()
    produced: dict[int, list[int]] = {key: [] for key in range(4)}
    sent: dict[int, list[int]] = {key: [] for key in range(4)}
    for entry in [*script, *[None] * 4]:
        if entry is not None:
            key, token_id = entry
            produced[key].append(token_id)
            coalescer.put(SequenceEvent(key, [token_id]))
        elif pending := coalescer.take():
            sent[pending.key] += pending.token_ids
    assert sent == produced
    assert len(coalescer) == 0
