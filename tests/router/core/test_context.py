from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.core.trace import TraceContext, is_recorded, read_context, read_state

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GOOD = f"00-{TRACE}-{SPAN}-01"

contexts = st.builds(
    TraceContext,
    st.integers(1, 2**128 - 1),
    st.integers(1, 2**64 - 1),
    st.booleans(),
)


@settings(deadline=None)
@given(contexts)
def test_a_written_traceparent_is_read_again(context: TraceContext) -> None:
    assert read_context(context.traceparent) == context


@settings(deadline=None)
@given(st.text() | st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{31,33}-[0-9a-f]{15,17}-[0-9a-f]{1,3}(-.*)?"))
def test_any_header_is_a_trace_context_or_nothing(text: str) -> None:
    found = read_context(text)
    assert found is None or read_context(found.traceparent) == found


@pytest.mark.parametrize(
    "traceparent",
    [
        "",
        "00",
        GOOD.upper(),
        f" {GOOD}",
        f"{GOOD}\n",
        f"{GOOD}-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE[:-1]}g-{SPAN}-01",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
        f"00_{TRACE}_{SPAN}_01",
    ],
)
def test_a_malformed_traceparent_is_ignored(traceparent: str) -> None:
    assert read_context(traceparent) is None


@pytest.mark.parametrize("traceparent", [f"cc-{TRACE}-{SPAN}-01-what-will-be", f"cc-{TRACE}-{SPAN}-01"])
def test_a_traceparent_of_a_later_version_is_read_by_its_known_fields(traceparent: str) -> None:
    assert read_context(traceparent) == read_context(GOOD)


def test_only_the_last_flag_says_whether_a_trace_is_sampled() -> None:
    flags = {flag: read_context(f"00-{TRACE}-{SPAN}-{flag}") for flag in ("00", "01", "02", "ff")}
    sampled = {flag: context.is_sampled for flag, context in flags.items() if context is not None}
    assert sampled == {"00": False, "01": True, "02": False, "ff": True}


@pytest.mark.parametrize(
    ("given_state", "passed_on"),
    [
        ("", ""),
        ("congo=t61rcWkgMzE", "congo=t61rcWkgMzE"),
        ("rojo=00f067aa0ba902b7 , congo=t61rcWkgMzE,", "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"),
        ("fw529a3039@dt=FfAz&", "fw529a3039@dt=FfAz&"),
        ("Upper=1", ""),
        ("1st=1", ""),
        ("a@b@c=1", ""),
        ("twice=1,twice=2", ""),
        ("no-value", ""),
        ("a=ä", ""),
        (",".join(f"k{number}=1" for number in range(33)), ""),
        ("k=" + "x" * 600, ""),
    ],
)
def test_a_tracestate_is_passed_on_whole_or_not_at_all(given_state: str, passed_on: str) -> None:
    assert read_state(given_state) == passed_on
    context = read_context(GOOD, given_state)
    assert context is not None
    assert context.state == passed_on


@settings(deadline=None)
@given(contexts | st.none(), st.floats(0, 100), st.floats(0, 1, exclude_max=True))
def test_the_caller_decides_on_sampling_and_otherwise_chance(
    parent: TraceContext | None, percent: float, chance: float
) -> None:
    expected = chance * 100 < percent if parent is None else parent.is_sampled
    assert is_recorded(parent, percent, chance) is expected


def test_sampling_of_0_or_100_percent_records_none_or_all() -> None:
    assert not is_recorded(None, 0.0, 0.0)
    assert is_recorded(None, 100.0, 1.0 - 2**-53)
