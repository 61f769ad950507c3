from __future__ import annotations

import re
import time
from pathlib import Path

from loadtest.server_metrics import MetricsSampler, Page, server_sample
from tests.fakes.openai_server import TimedApi, timed_api
from tests.waiting import wait_until

ROUTER = """\
# HELP inflight_waiting_requests Waiting.
# TYPE inflight_waiting_requests gauge
inflight_waiting_requests{model="m",release="1",tier="batch"} 2.0
inflight_waiting_requests{model="m",release="1",tier="standard"} 3.0
inflight_requests_in_flight{model="m",release="1",tenant="org-1"} 9.0
inflight_prompt_tokens_total{model="m",release="1",tenant="org-1"} 100.0
inflight_completion_tokens_total{model="m",release="1",tenant="org-1"} 20.0
inflight_completion_tokens_total{model="m",release="1",tenant="odd \\"one\\""} 1e+03
inflight_stage_seconds_sum{model="m",stage="queue"} 1.5
inflight_stage_seconds_count{model="m",stage="queue"} 4.0
inflight_stage_seconds_sum{model="m",stage="decode"} 8.0
inflight_stage_seconds_count{model="m",stage="decode"} 3.0
inflight_kv_reserved_tokens{model="m"} 10
inflight_kv_budget_tokens{model="m"} 40
"""
TRITON = """\
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="active",version="1"} 5
nv_trt_llm_request_metrics{model="tensorrt_llm",request_type="max",version="1"} 64
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="used",model="tensorrt_llm"} 30
nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="max",model="tensorrt_llm"} 120
inflight_engine_batch_limit_sequences{model="tensorrt_llm"} 32
"""


def test_a_sample_combines_the_routers_and_tritons_metrics() -> None:
    sample = server_sample(3.0, Page.of(ROUTER), Page.of(TRITON), {"org-1": "acme"})
    assert (sample.waiting, sample.running, sample.batch_limit, sample.kv_used_ratio) == (5, 5, 32, 0.25)
    assert sample.tokens_by_tenant == {"acme": 120.0, 'odd \\"one\\"': 1000.0}
    assert sample.stage_seconds == {"queue": 1.5, "decode": 8.0}
    assert sample.stage_requests == 4.0


def test_every_metric_that_is_read_exists() -> None:
    root = Path(__file__).parents[2]
    documented = (root / "docs" / "metrics.md").read_text()
    code = (root / "loadtest" / "server_metrics.py").read_text()
    names = re.findall(r'"((?:inflight|nv)_\w+?)(?:_sum|_count)?"', code)
    assert len(names) > 8
    assert [name for name in names if f"`{name}`" not in documented] == []


def test_without_triton_the_routers_metrics_are_used() -> None:
    sample = server_sample(3.0, Page.of(ROUTER), Page())
    assert (sample.running, sample.batch_limit, sample.kv_used_ratio) == (4.0, None, 0.25)


def test_missing_metrics_are_none_and_not_zero() -> None:
    sample = server_sample(0.0, Page(), Page())
    assert (sample.waiting, sample.running, sample.kv_used_ratio) == (None, None, None)


def test_samples_are_taken_only_while_the_run_lasts() -> None:
    began_s: list[float | None] = [None]
    with timed_api(TimedApi()) as api:
        gathering = MetricsSampler(api.url, began_s=lambda: began_s[0], interval_s=0.02)
        with gathering:
            time.sleep(0.1)
            assert gathering.samples == []
            began_s[0] = time.perf_counter()
            wait_until(lambda: gathering.samples)
    assert gathering.samples[0].waiting == 3
    assert gathering.samples[0].at_s >= 0


def test_a_server_without_metrics_leaves_no_samples() -> None:
    gathering = MetricsSampler("http://127.0.0.1:9", interval_s=0.01)
    with gathering:
        time.sleep(0.05)
    assert gathering.samples == []
