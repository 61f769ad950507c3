from __future__ import annotations

import logging
import time

import httpx
import pytest

from tests.fakes.pipeline import words
from tests.pace import patience
from tests.router.running import EMBEDDER, MODEL, QUESTION, RunningRouter


async def test_models_are_listed_and_shown(router: RunningRouter) -> None:
    listed = (await router.http.get("/v1/models")).json()
    assert [model["id"] for model in listed["data"]] == [MODEL, "no-template", EMBEDDER]
    shown = (await router.http.get(f"/v1/models/{MODEL}")).json()
    assert shown == listed["data"][0]
    assert shown["object"] == "model"


@pytest.mark.parametrize(
    "name",
    [
        "other",
        "..%2ftiny",
        "%2e%2e%2ftiny",
        "tiny/",
        "TINY",
        ";id",
        "%00",
        "ｔiny",
        "x" * 300,
        "tiny%0d%0a",
        "%ff",
    ],
)
async def test_an_unknown_model_is_not_found_and_never_called(router: RunningRouter, name: str) -> None:
    for response in (await router.http.get(f"/v1/models/{name}"), await router.chat(model=name)):
        assert response.status_code == 404
        assert response.json()["error"]["code"] == "model_not_found"
        assert response.json()["error"]["param"] == "model"
    assert router.pipeline.calls == []


async def test_unknown_paths_are_not_found(router: RunningRouter) -> None:
    for path in ("/v", "/v1", "/v1/chat/completion/", "/v3/models", "/admin"):
        response = await router.http.post(path, json={})
        assert response.status_code == 404
        assert response.json()["error"]["type"] == "invalid_request_error"


async def test_a_wrong_method_is_refused_with_the_right_one(router: RunningRouter) -> None:
    response = await router.http.get("/v1/completions")
    assert response.status_code == 405
    assert response.headers["allow"] == "POST"
    response = await router.http.delete(f"/v1/models/{MODEL}")
    assert response.headers["allow"] == "GET"


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded"])
async def test_bodies_without_a_json_content_type_are_refused(router: RunningRouter, kind: str) -> None:
    headers = {"content-type": kind} if kind else {}
    response = await router.http.post("/v1/chat/completions", content=b"{}", headers=headers)
    assert response.status_code == 415


async def test_compressed_bodies_are_refused(router: RunningRouter) -> None:
    headers = {"content-type": "application/json; charset=utf-8", "content-encoding": "gzip"}
    response = await router.http.post("/v1/chat/completions", content=b"\x1f\x8b", headers=headers)
    assert response.status_code == 415


async def test_the_liveness_check_is_always_live(router: RunningRouter) -> None:
    router.pipeline.is_ready = False
    router.permits.drain()
    assert (await router.http.get("/health/live")).status_code == 200


async def test_a_broken_embedding_model_is_reported_and_takes_no_other_out_of_service(
    router: RunningRouter,
) -> None:
    router.embedder.is_ready = False
    response = await router.http.get("/health/ready")
    assert response.status_code == 200
    assert response.json() == {
        "status": "ready",
        "models": {MODEL: True, "no-template": True, EMBEDDER: False},
    }


async def test_readiness_follows_triton_within_a_moment(router: RunningRouter) -> None:
    assert (await router.http.get("/health/ready")).json()["status"] == "ready"
    router.pipeline.is_ready = False
    assert (await router.http.get("/health/ready")).status_code == 200  # cached
    await router.until_async(lambda: _ready_status(router), 503)
    router.pipeline.is_ready = True
    await router.until_async(lambda: _ready_status(router), 200)


async def test_a_draining_router_is_not_ready(router: RunningRouter) -> None:
    router.permits.drain()
    response = await router.http.get("/health/ready")
    assert (response.status_code, response.json()["status"]) == (503, "draining")


async def _ready_status(router: RunningRouter) -> int:
    return (await router.http.get("/health/ready")).status_code


async def test_metrics_count_requests_tokens_and_times(router: RunningRouter) -> None:
    await router.chat(stream=True)
    await router.chat(temperature=9)
    await router.http.get("/somewhere")
    shown = await router.http.get("/metrics")
    text = shown.text
    assert shown.headers["x-request-id"].startswith("req-")
    who = f'model="{MODEL}",release="1",tenant="local"'
    local = 'model="",release="",tenant="local"'
    nobody = 'model="",release="",tenant="nobody"'
    for line in (
        f'inflight_requests_total{{{who},route="/v1/chat/completions",status="200"}} 1.0',
        f'inflight_requests_total{{{local},route="/v1/chat/completions",status="400"}} 1.0',
        f'inflight_requests_total{{{nobody},route="unknown",status="404"}} 1.0',
        f"inflight_requests_in_flight{{{who}}} 0.0",
        f"inflight_prompt_tokens_total{{{who}}} 7.0",
        f"inflight_completion_tokens_total{{{who}}} 2.0",
        f"inflight_time_to_first_token_seconds_count{{{who}}} 1.0",
        f"inflight_inter_chunk_seconds_count{{{who}}} 2.0",
        f"inflight_request_seconds_count{{{who}}} 1.0",
        f'inflight_requests_ended_total{{{who},outcome="finished"}} 1.0',
    ):
        assert _same_labels(line, text), line


def _same_labels(line: str, text: str) -> bool:
    def key(each: str) -> tuple[str, tuple[str, ...], str]:
        name, _, rest = each.partition("{")
        labels, _, value = rest.partition("} ")
        return name, tuple(sorted(labels.split(","))), value

    return key(line) in {key(each) for each in text.splitlines() if "{" in each}


async def test_a_request_is_one_log_line_without_its_text(
    router: RunningRouter, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    router.pipeline.script = lambda call: words("secret answer")
    response = await router.chat(messages=[{"role": "user", "content": "secret question"}])
    await router.http.get("/health/live")
    await router.until(lambda: len([r for r in caplog.records if r.name == "router.app"]) > 0)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "router.app"]
    assert response.headers["x-request-id"] in line
    for part in ("status=200", "outcome=finished", "finish=stop", "prompt_tokens=7", "completion_tokens=1"):
        assert part in line
    assert "secret" not in caplog.text


async def test_json_of_any_depth_is_answered_or_refused(router: RunningRouter) -> None:
    """Also where it is just not too deep to be read, and is when it is written again inside of something."""
    statuses = set()
    for depth in range(940, 1000):
        arguments = '{"a":' * depth + "1" + "}" * depth
        made = {"id": "call_1", "function": {"name": "f", "arguments": arguments}}
        answer = await router.chat(messages=[{"role": "assistant", "tool_calls": [made]}])
        statuses.add(answer.status_code)
    assert statuses <= {200, 400}


async def test_whoever_asks_again_at_once_after_each_refusal_is_refused_later_and_others_are_not(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.admission.refusal_pace.AT_ONCE", 3)
    monkeypatch.setattr("router.admission.refusal_pace.LONGEST_S", 0.3)
    monkeypatch.setattr("router.admission.refusal_pace.PER_S", 0.001)
    flood, other = [
        {"authorization": f"Bearer {await router.new_key(await router.new_tenant(name))}"}
        for name in ("flood", "other")
    ]
    router.permits.draining = True

    async def refused_after_s(headers: dict[str, str]) -> float:
        start_s = time.monotonic()
        response = await router.http.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": QUESTION}, headers=headers
        )
        assert response.status_code == 503
        return time.monotonic() - start_s

    for headers in (flood, flood, flood):
        await refused_after_s(headers)
    held = [await refused_after_s(flood) for _ in range(2)]
    for headers in (other, other):
        await refused_after_s(headers)
    assert min(held) >= 0.3
    families = router.metrics.registry.collect()
    held_of = [family for family in families if family.name == "inflight_held_refusals"]
    assert [sample.value for sample in held_of[0].samples if sample.name.endswith("_total")] == [2.0]


async def test_a_client_that_leaves_while_its_refusal_is_held_back_ends_the_request(
    router: RunningRouter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.admission.refusal_pace.AT_ONCE", 0)
    monkeypatch.setattr("router.admission.refusal_pace.LONGEST_S", 60.0)
    router.permits.draining = True
    with pytest.raises(httpx.ReadTimeout):
        await router.http.post(
            "/v1/chat/completions",
            json={"model": MODEL, "messages": QUESTION},
            timeout=httpx.Timeout(patience(30), read=0.2),
        )

    def ended() -> bool:
        requests = next(
            each for each in router.metrics.registry.collect() if each.name == "inflight_requests"
        )
        return any(sample.labels.get("route") == "/v1/chat/completions" for sample in requests.samples)

    await router.until(ended)
