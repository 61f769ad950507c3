from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from python_backend.engine.report import FinishReason, PerfMetrics, SequenceEvent
from python_backend.triton_adapter.coalescer import Coalescer, Pending

STREAMS = [(key, index) for key in range(2) for index in range(2)]


def take(coalescer: Coalescer) -> Pending:
    pending = coalescer.take()
    assert pending is not None
    return pending


def test_a_lone_token_is_sent_on_its_own() -> None:
    coalescer = Coalescer()
    coalescer.put(SequenceEvent(1, [7]))
    pending = take(coalescer)
    assert (pending.key, pending.token_ids, pending.finish_reason) == (1, [7], None)
    assert coalescer.take() is None


def test_tokens_that_pile_up_are_sent_together_and_the_longest_waiting_first() -> None:
    coalescer = Coalescer()
    for event in (
        SequenceEvent(1, [10]),
        SequenceEvent(2, [20]),
        SequenceEvent(1, [11, 12], FinishReason.LENGTH),
    ):
        coalescer.put(event)
    first, second = take(coalescer), take(coalescer)
    assert (first.key, first.token_ids, first.finish_reason) == (1, [10, 11, 12], "length")
    assert (second.key, second.token_ids) == (2, [20])


def test_log_probs_and_logits_pile_up_with_their_tokens() -> None:
    perf = PerfMetrics(1, 2, 3, 4, 5, 6, 7)
    coalescer = Coalescer()
    coalescer.put(
        SequenceEvent(1, [10], log_probs=[-0.5], context_logits=b"c", generation_logits=b"x"), now_ns=100
    )
    coalescer.put(SequenceEvent(1, [11], log_probs=[-1.5], generation_logits=b"y"), now_ns=200)
    coalescer.put(SequenceEvent(1, [], FinishReason.END_ID, generation_logits=b"z", perf=perf), now_ns=300)
    pending = take(coalescer)
    assert pending.log_probs == [-0.5, -1.5]
    assert pending.context_logits == [b"c"]
    assert pending.generation_logits == [b"x", b"y"], "the end token is no part of the answer"
    assert (pending.perf, pending.oldest_ns, pending.newest_ns) == (perf, 100, 200)


def test_sequences_of_one_row_are_separate_streams() -> None:
    coalescer = Coalescer()
    coalescer.put(SequenceEvent(1, [10], sequence_index=1))
    coalescer.put(SequenceEvent(1, [20], sequence_index=0))
    assert [(p.sequence_index, p.token_ids) for p in (take(coalescer), take(coalescer))] == [
        (1, [10]),
        (0, [20]),
    ]


def test_an_answer_that_does_not_stream_waits_for_its_end() -> None:
    coalescer = Coalescer()
    coalescer.put(SequenceEvent(1, [10]), whole=True)
    assert len(coalescer) == 0
    assert coalescer.take() is None
    coalescer.put(SequenceEvent(1, [11], FinishReason.LENGTH), whole=True)
    assert take(coalescer).token_ids == [10, 11]


def test_a_dropped_row_is_never_sent() -> None:
    coalescer = Coalescer()
    for index in range(2):
        coalescer.put(SequenceEvent(1, [10], sequence_index=index))
    coalescer.put(SequenceEvent(2, [20]))
    coalescer.drop(1, sequences=2)
    assert take(coalescer).key == 2
    assert coalescer.take() is None


@given(st.lists(st.one_of(st.tuples(st.sampled_from(STREAMS), st.integers(0, 9)), st.none())))
def test_no_token_is_lost_doubled_or_reordered(script: list[tuple[tuple[int, int], int] | None]) -> None:
    """None in the script is the sender coming round; whatever is left at the end is taken then."""
    coalescer = Coalescer()
    produced: dict[tuple[int, int], list[int]] = {stream: [] for stream in STREAMS}
    sent: dict[tuple[int, int], list[int]] = {stream: [] for stream in STREAMS}
    for entry in [*script, *[None] * len(STREAMS)]:
        if entry is not None:
            (key, index), token_id = entry
            produced[key, index].append(token_id)
            coalescer.put(SequenceEvent(key, [token_id], sequence_index=index))
        elif pending := coalescer.take():
            sent[pending.key, pending.sequence_index] += pending.token_ids
    assert sent == produced
    assert len(coalescer) == 0


def test_whoever_was_silent_longest_is_next_also_where_its_first_token_went_ahead() -> None:
    """Three streams go on and a fourth begins, in each step of the engine after the others."""
    coalescer = Coalescer()
    for key in (1, 2, 3):
        coalescer.put(SequenceEvent(key, [0]), is_first=True)
    assert [take(coalescer).key for _ in range(3)] == [1, 2, 3]
    for key in (1, 2, 3, 4):
        coalescer.put(SequenceEvent(key, [1]), is_first=key == 4)
    assert [take(coalescer).key for _ in range(4)] == [4, 1, 2, 3]
    for key in (1, 2, 3, 4):
        coalescer.put(SequenceEvent(key, [2], FinishReason.LENGTH))
    assert [take(coalescer).key for _ in range(4)] == [4, 1, 2, 3]
    assert not coalescer._heard, "who has ended is remembered"


def test_a_whole_answer_waits_behind_those_that_wait_already() -> None:
    coalescer = Coalescer()
    coalescer.put(SequenceEvent(1, [0]), is_first=True)
    take(coalescer)
    coalescer.put(SequenceEvent(1, [1]))
    coalescer.put(SequenceEvent(2, [9], FinishReason.LENGTH), whole=True)
    assert [take(coalescer).key for _ in range(2)] == [1, 2]
