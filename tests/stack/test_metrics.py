"""What a running stack shows on both ports is what the documentation says, and tells where time went."""

from __future__ import annotations

import urllib.request

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.stack import RunningStack
from launcher.settings import StackSettings
from router.core.stages import TOGETHER
from tests.documented_metrics import documented, exposed
from tests.pace import patience

pytestmark = pytest.mark.stack

EMBEDDINGS = StackSettings().embeddings


@pytest.fixture(scope="module")
def pages(stack: RunningStack) -> tuple[str, str]:
    """The router's and Triton's, after one request of each kind."""
    with httpx.Client(base_url=stack.url, trust_env=False, verify=False, timeout=patience(60)) as http:
        question = [{"role": "user", "content": "Say yes."}]
        chat = {"model": stack.model, "messages": question, "max_tokens": 3}
        for path, body in (
            ("/v1/chat/completions", chat),
            ("/v1/embeddings", {"model": EMBEDDINGS, "input": "yes"}),
        ):
            assert http.post(path, json=body).status_code == 200
        routers = http.get("/metrics").text
    with urllib.request.urlopen(stack.triton_metrics_url, timeout=patience(10)) as answer:
        return routers, answer.read().decode()


def test_every_exposed_metric_is_documented_with_its_labels(pages: tuple[str, str]) -> None:
    told, shown = documented(), [exposed(page) for page in pages]
    ours = {name: each for page in shown for name, each in page.items() if name.startswith("inflight_")}
    assert {name: told.get(name) for name in ours} == ours
    assert not shown[0].keys() & shown[1].keys(), "a name tells which port it is of"


def test_every_documented_triton_metric_is_exposed(pages: tuple[str, str]) -> None:
    shown = exposed(pages[1])
    names = {each for each in documented() if each.startswith("nv_") and not each.startswith("nv_gpu_")}
    names -= {"nv_trt_llm_v1_metrics"}  # in place of another, where batches do not change
    assert names - shown.keys() == set()
    assert {name: documented()[name] for name in names} == {name: shown[name] for name in names}


def test_each_kind_of_request_has_its_stage_metrics(pages: tuple[str, str], stack: RunningStack) -> None:
    (family,) = (
        each for each in text_string_to_metric_families(pages[0]) if each.name == "inflight_stage_seconds"
    )
    found: dict[str, set[str]] = {}
    for sample in family.samples:
        if sample.name.endswith("_count") and sample.value > 0:
            found.setdefault(sample.labels["model"], set()).add(sample.labels["stage"])
    around = {"admission", "queue", "send"}
    engine = {"preprocessing", "engine_queue", "prefill", "decode", "postprocessing"}
    assert around | engine <= found[stack.model]
    assert found[EMBEDDINGS] == around | {TOGETHER}


def test_triton_separates_queue_time_from_compute_time(pages: tuple[str, str]) -> None:
    values = {
        sample.name.removesuffix("_total"): sample.value
        for family in text_string_to_metric_families(pages[1])
        for sample in family.samples
        if sample.labels.get("model") == "embeddings" and "quantile" not in sample.labels
    }
    whole = values["nv_inference_request_duration_us"]
    parts = ("queue", "compute_input", "compute_infer", "compute_output")
    assert 0 < sum(values[f"nv_inference_{part}_duration_us"] for part in parts) <= whole
    assert values["nv_inference_queue_summary_us_count"] > 0
