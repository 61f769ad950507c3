"""What `inflight top` makes of a router's own metrics."""

from __future__ import annotations

from io import StringIO

from rich.console import Console

from launcher.commands.top.scrape import Scrape, ScrapeDelta, read_scrape
from launcher.commands.top.screen import RELEASES, columns_for, drawn
from launcher.commands.top.view import View, view_of

OLD = """\
inflight_build_info{version="9.9"} 1.0
process_start_time_seconds 1000.0
process_cpu_seconds_total 5.0
process_resident_memory_bytes 104857600.0
inflight_release_share{model="m",release="1"} 0.9
inflight_release_share{model="m",release="2"} 0.1
inflight_replica_up{model="m",release="1",replica="triton-0"} 1.0
inflight_replica_up{model="m",release="1",replica="triton-1"} 0.0
inflight_requests_ended_total{model="m",outcome="finished",release="1",tenant="big"} 10.0
inflight_requests_ended_total{model="m",outcome="finished",release="1",tenant="small"} 10.0
inflight_completion_tokens_total{model="m",release="1",tenant="big"} 1000.0
inflight_completion_tokens_total{model="m",release="1",tenant="small"} 10.0
inflight_requests_total{model="m",release="1",route="/v1/completions",status="200",tenant="big"} 10.0
inflight_requests_total{model="m",release="1",route="/v1/completions",status="503",tenant="big"} 1.0
inflight_stage_seconds_sum{model="m",release="1",stage="queue",tenant="big"} 1.0
inflight_stage_seconds_count{model="m",release="1",stage="queue",tenant="big"} 10.0
inflight_stage_seconds_sum{model="m",release="1",stage="decode",tenant="big"} 1.0
inflight_stage_seconds_count{model="m",release="1",stage="decode",tenant="big"} 10.0
inflight_time_to_first_token_seconds_bucket{le="0.1",model="m",release="1",tenant="big"} 0.0
inflight_time_to_first_token_seconds_bucket{le="+Inf",model="m",release="1",tenant="big"} 0.0
"""
NEW = """\
inflight_build_info{version="9.9"} 1.0
process_start_time_seconds 1000.0
process_cpu_seconds_total 10.0
process_resident_memory_bytes 104857600.0
inflight_release_share{model="m",release="1"} 0.9
inflight_release_share{model="m",release="2"} 0.1
inflight_replica_up{model="m",release="1",replica="triton-0"} 1.0
inflight_replica_up{model="m",release="1",replica="triton-1"} 0.0
inflight_replica_busy_ratio{model="m",release="1",replica="triton-0"} 0.8
inflight_replica_batch_occupancy_ratio{model="m",release="1",replica="triton-0"} 0.5
inflight_requests_in_flight{model="m",release="1",tenant="big"} 7.0
inflight_requests_in_flight{model="m",release="1",tenant="small"} 1.0
inflight_waiting_requests{model="m",release="1",tier="interactive"} 3.0
inflight_kv_reserved_tokens{model="m",release="1"} 95.0
inflight_kv_budget_tokens{model="m",release="1"} 100.0
inflight_drain_seconds{model="m",release="1"} 2.5
inflight_objective_attained_ratio{metric="first_token",model="m",tier="interactive"} 0.9
inflight_objective_attained_ratio{metric="inter_token",model="m",tier="interactive"} 1.0
inflight_noisy_tenant_ratio{model="m",tenant="small"} 3.0
inflight_requests_ended_total{model="m",outcome="finished",release="1",tenant="big"} 30.0
inflight_requests_ended_total{model="m",outcome="finished",release="1",tenant="small"} 10.0
inflight_completion_tokens_total{model="m",release="1",tenant="big"} 3000.0
inflight_completion_tokens_total{model="m",release="1",tenant="small"} 20.0
inflight_requests_total{model="m",release="1",route="/v1/completions",status="200",tenant="big"} 30.0
inflight_requests_total{model="m",release="1",route="/v1/completions",status="503",tenant="big"} 6.0
inflight_refused_requests_total{model="m",reason="busy",tier="interactive"} 5.0
inflight_stage_seconds_sum{model="m",release="1",stage="queue",tenant="big"} 4.0
inflight_stage_seconds_count{model="m",release="1",stage="queue",tenant="big"} 30.0
inflight_stage_seconds_sum{model="m",release="1",stage="decode",tenant="big"} 2.0
inflight_stage_seconds_count{model="m",release="1",stage="decode",tenant="big"} 30.0
inflight_time_to_first_token_seconds_bucket{le="0.1",model="m",release="1",tenant="big"} 20.0
inflight_time_to_first_token_seconds_bucket{le="+Inf",model="m",release="1",tenant="big"} 20.0
"""
TRITON = """\
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 5.0
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="waiting",version="1"} 2.0
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 16.0
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction",model="tensorrt_llm",version="1"} 0.25
inflight_engine_busy_seconds_total{model="tensorrt_llm",version="1"} """


def seen() -> View:
    old_triton, new_triton = (
        read_scrape(TRITON + busy, at_s) for busy, at_s in (("1", 2000.0), ("6", 2010.0))
    )
    router = ScrapeDelta(read_scrape(OLD, 2000.0), read_scrape(NEW, 2010.0))
    return view_of(router, ScrapeDelta(old_triton, new_triton), is_ready=True)


def text(view: View, width: int) -> str:
    file = StringIO()
    Console(width=width, file=file).print(drawn(view, "http://here", width))
    return file.getvalue()


def test_a_release_is_shown_by_what_happened_between_two_scrapes() -> None:
    first, second = seen().releases
    assert (first.model, first.release, first.share) == ("m", "1", 0.9)
    assert (first.in_flight, first.waiting["interactive"]) == (8, 3)
    assert (first.requests_per_s, first.tokens_per_s) == (2.0, 201.0)
    assert first.first_token_p50_s == 0.05
    assert (first.attained, first.kv, first.drain_s, first.busy) == (0.9, 0.95, 2.5, 0.8)
    assert (first.replicas_up, first.replicas) == (1, 2)
    assert (second.share, second.first_token_p95_s, second.replicas) == (0.1, None, 0)


def test_noisy_tenants_are_listed_before_the_heaviest_users() -> None:
    assert [(each.tenant, each.noisy, each.tokens_per_s) for each in seen().tenants] == [
        ("small", 3.0, 1.0),
        ("big", None, 200.0),
    ]


def test_stages_are_shares_of_the_time_of_ended_requests() -> None:
    assert [(each.stage, each.mean_s, each.part) for each in seen().stages] == [
        ("queue", 0.15, 0.75),
        ("decode", 0.05, 0.25),
    ]


def test_refusals_are_counted_for_the_time_between_two_scrapes() -> None:
    assert [(each.what, each.count) for each in seen().troubles] == [
        ("503 at /v1/completions", 5),
        ("refused: busy, m interactive", 5),
    ]


def test_the_view_shows_the_router_and_its_engines() -> None:
    view = seen()
    assert (view.version, view.up_s, view.cpu, view.other_routers) == ("9.9", 1010.0, 0.5, None)
    (engine,) = view.engines
    assert (engine.active, engine.waiting, engine.limit, engine.kv, engine.busy) == (5, 2, 16, 0.25, 0.5)


def test_a_wide_terminal_shows_all_columns_and_a_narrow_one_the_most_important() -> None:
    wide, narrow = text(seen(), 160), text(seen(), 60)
    for word in (
        "m@1",
        "90%",
        "3/0/0",
        "201",
        "50 ms",
        "95%",
        "1/2",
        "3.0x",
        "queue",
        "75%",
        "503 at",
        "5/16",
    ):
        assert word in wide
    assert "TTFT p50" not in narrow
    assert "TTFT p95" in narrow
    assert narrow.index("503 at") < narrow.index("where the time goes")
    for word in ("m@1", "tok/s", "running"):
        assert word in narrow
    assert all(len(line) <= 60 for line in narrow.splitlines())


def test_columns_fit_the_terminal_and_the_first_is_always_shown() -> None:
    for width in (10, 40, 80, 200):
        chosen = columns_for(RELEASES, width)
        assert chosen[0].title == "model"
        assert len(chosen) == 1 or sum(each.width + 2 for each in chosen) <= width
    assert len(columns_for(RELEASES, 200)) == len(RELEASES)


def test_an_idle_router_can_be_shown() -> None:
    nothing = Scrape(1.0, {})
    assert "nothing" in text(view_of(ScrapeDelta(nothing, nothing)), 100)
