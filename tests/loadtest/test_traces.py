"""Traces are read whatever their columns are called, and changed without touching lengths by accident."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.traces import (
    ARENA,
    CODE,
    Trace,
    TracedRequest,
    TraceError,
    read_trace,
    synthetic_trace,
    tiers_by_chance,
    tiers_by_tenant,
)
from tests.tiers import examples


def written(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("ours.csv", "arrival_s,tenant,prompt_tokens,output_tokens\n5.0,a,10,3\n6.5,b,20,4\n"),
        ("arena.csv", "client,arrival_s,prompt_tokens,output_tokens\na,0.0,10,3\nb,1.5,20,4\n"),
        (
            "mooncake.jsonl",
            '{"timestamp": 500, "input_length": 10, "output_length": 3, "tenant": "a"}\n\n'
            '{"timestamp": 2000, "input_length": 20, "output_length": 4, "tenant": "b"}\n',
        ),
        ("late.csv", "arrival_s,tenant,prompt_tokens,output_tokens\n6.5,b,20,4\n5.0,a,10,3\n"),
    ],
)
def test_known_trace_formats_give_the_same_requests(tmp_path: Path, name: str, text: str) -> None:
    assert read_trace(written(tmp_path, name, text)).requests == (
        TracedRequest(0.0, 10, 3, "a"),
        TracedRequest(1.5, 20, 4, "b"),
    )


def test_block_hashes_are_read_where_a_trace_has_them(tmp_path: Path) -> None:
    row = '{"timestamp": 0, "input_length": 700, "output_length": 3, "hash_ids": %s}\n'
    without = '{"timestamp": 0, "input_length": 700, "output_length": 3}\n'
    trace = read_trace(written(tmp_path, "mooncake.jsonl", without + row % "[7, 9]" + row % "null"))
    assert [each.blocks for each in trace.requests] == [(), (7, 9), ()]
    with pytest.raises(TraceError, match="request 1: hash_ids is 'x'; expected a list of whole numbers"):
        read_trace(written(tmp_path, "odd.jsonl", row % '"x"'))


def test_azures_timestamps_have_seven_digits(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 23:59:59.9799600,4808,10\n"
        "2023-11-17 00:00:01.2299600,3180,8\n"
    )
    trace = read_trace(written(tmp_path, "azure.csv", text))
    assert trace.duration_s == pytest.approx(1.25, abs=1e-5)
    assert trace.tenants == [""]


def test_tiers_and_limits_are_read_where_a_trace_has_them(tmp_path: Path) -> None:
    text = "arrival_s,prompt_tokens,output_tokens,tier,max_tokens\n0,10,3,batch,100\n1,10,0,,\n"
    first, second = read_trace(written(tmp_path, "t.csv", text)).requests
    assert (first.tier, first.max_tokens) == ("batch", 100)
    assert (second.tier, second.max_tokens) == (None, None)
    assert second.output_tokens == 1, "an answer has a token at least"


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("a.csv", "when,prompt_tokens,output_tokens\n0,1,1\n", "no column for 'at'"),
        ("a.csv", "arrival_s,prompt_tokens,output_tokens\n0,much,1\n", "request 1"),
        ("a.csv", "arrival_s,prompt_tokens,output_tokens\n0,-4,1\n", "prompt_tokens is -4"),
        ("a.csv", "arrival_s,prompt_tokens,output_tokens\nnan,4,1\n", "nan is not a time"),
        ("a.csv", "arrival_s,prompt_tokens,output_tokens\n0,4\n", "request 1"),
        ("a.csv", "", "holds no requests"),
        ("a.jsonl", "{", "line 1: not JSON"),
        ("a.jsonl", "[1]\n", "line 1: expected an object"),
    ],
)
def test_an_invalid_trace_is_refused_with_its_position(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    with pytest.raises(TraceError, match=says):
        read_trace(written(tmp_path, name, text))


def test_a_missing_trace_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"gone\.csv cannot be read"):
        read_trace(tmp_path / "gone.csv")


def test_a_faster_trace_has_the_same_requests_in_less_time() -> None:
    trace = synthetic_trace(1, 100.0)
    faster = trace.faster(4.0)
    assert faster.duration_s == pytest.approx(trace.duration_s / 4)
    assert [each.output_tokens for each in faster.requests] == [each.output_tokens for each in trace.requests]
    with pytest.raises(ValueError, match="above 0"):
        trace.faster(0.0)


def test_requests_that_are_too_long_are_shortened_and_counted() -> None:
    trace = Trace(
        "t", (TracedRequest(0, 50, 10, max_tokens=90), TracedRequest(1, 95, 20), TracedRequest(2, 500, 9))
    )
    clamped = trace.clamp(100)
    assert clamped.clamped == 2
    assert [(each.prompt_tokens, each.output_tokens) for each in clamped.requests] == [
        (50, 10),
        (95, 5),
        (99, 1),
    ]
    assert clamped.requests[0].max_tokens == 50


@settings(deadline=None, max_examples=examples(30))
@given(st.floats(1.0, 500.0))
def test_a_trace_is_extended_to_the_requested_duration_at_an_even_rate(duration_s: float) -> None:
    trace = synthetic_trace(2, 60.0)
    lasting = trace.lasting(duration_s)
    moments = [each.at_s for each in lasting.requests]
    assert moments == sorted(moments)
    assert moments[-1] <= duration_s
    if duration_s > 60:
        rate = len(trace.requests) / trace.duration_s
        assert len(moments) == pytest.approx(rate * duration_s, rel=0.25)


def test_a_generated_trace_is_the_same_for_the_same_seed_and_has_the_shape_of_a_real_one() -> None:
    trace = synthetic_trace(7, 600.0, ARENA)
    assert trace == synthetic_trace(7, 600.0, ARENA)
    assert trace != synthetic_trace(8, 600.0, ARENA)
    assert 1200 < len(trace.requests) < 1800
    sizes = sorted(
        (sum(each.tenant == tenant for each in trace.requests) for tenant in trace.tenants), reverse=True
    )
    assert 0.35 < sum(sizes[:3]) / len(trace.requests) < 0.6


def test_a_generated_burst_is_many_times_the_usual_rate() -> None:
    trace = synthetic_trace(3, 300.0, CODE)
    counts = [0] * 301
    for each in trace.requests:
        counts[int(each.at_s)] += 1
    assert max(counts) > 40
    assert sorted(counts)[150] <= 4


def test_tiers_are_assigned_to_requests_without_one() -> None:
    trace = Trace("t", (TracedRequest(0, 1, 1, "a", "batch"), *(TracedRequest(1, 1, 1, "b"),) * 300))
    by_chance = trace.with_tiers(tiers_by_chance({"interactive": 2, "standard": 1}))
    assert by_chance.requests[0].tier == "batch"
    assert 170 < sum(each.tier == "interactive" for each in by_chance.requests) < 230
    by_tenant = trace.with_tiers(tiers_by_tenant(["standard", "interactive"]))
    assert {each.tier for each in by_tenant.requests} == {"batch", "standard"}


def test_traces_are_merged_in_order() -> None:
    trace = Trace("t", (TracedRequest(0, 1, 1, "a"), TracedRequest(4, 1, 1, "a")))
    both = trace.and_also([TracedRequest(2, 1, 1, "b")])
    assert [each.tenant for each in both.requests] == ["a", "b", "a"]
