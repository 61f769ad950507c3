from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from python_backend.engine.request import GenerationRequest
from python_backend.engine.sequence import Sequence
from python_backend.engine.steps.guide_waits import await_guides
from tests.fakes.executor import FakeClock
from tests.fakes.guides import FakeGuide, Pace

MS = 1_000_000
# Without a guide, with one that knows what may come next, and with one that never will.
KINDS = st.sampled_from(["free", "ready", "late"])
GROUPS = st.lists(st.tuples(KINDS, st.integers(0, 20 * MS)), max_size=12)


def sequences_of(group: list[tuple[str, int]], clock: FakeClock) -> list[Sequence]:
    """Each had its last token so long ago."""
    made = []
    for key, (kind, ago_ns) in enumerate(group):
        sequence = Sequence(key, key, GenerationRequest([1], 9), 9)
        sequence.last_token_ns = clock.now_ns - ago_ns
        if kind != "free":
            sequence.guide = FakeGuide([5], Pace(kind == "ready", clock=clock))
        made.append(sequence)
    return made


@given(running=GROUPS, waiting=GROUPS, last_step_ns=st.integers(0, 100 * MS))
def test_a_late_guide_holds_up_others_for_a_tenth_of_a_step_and_nobody_for_more_than_5_ms(
    running: list[tuple[str, int]], waiting: list[tuple[str, int]], last_step_ns: int
) -> None:
    clock = FakeClock(look_ns=0)
    clock.now_ns = began_ns = 10**9
    await_guides(
        sequences_of(running, clock), sequences_of(waiting, clock), lambda: clock.now_ns, last_step_ns
    )
    waited_ns = clock.now_ns - began_ns
    late = [5 * MS - ago_ns for kind, ago_ns in running if kind == "late"]
    assert waited_ns <= max(0, *late, 0)
    if any(kind != "late" for kind, _ in (*running, *waiting)):
        assert waited_ns <= last_step_ns / 10
    elif late:
        assert waited_ns == max(0, *late, 0)
