"""Which release of a model answers: pins, splits and what is not there."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, replace

import httpx
import pytest
import sqlalchemy as sql

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.record import Record
from router.core.tenant import LOCAL_CALLER, Scope
from router.routing.chat_template import ChatTemplate
from router.routing.models import Lineup, Registry, ServedModel
from router.routing.split import ModelSplit, Shadow, Sticky
from router.store.schema import usage
from tests.fakes.pipeline import FakePipeline, words
from tests.router.running import EMBEDDER, MODEL, QUESTION, TEMPLATE, RunningRouter

HALF = ModelSplit("m", ((2, 0.5), (1, 0.5)), "salt")


@dataclass(frozen=True, slots=True)
class ServedThing:
    """Of a kind that neither generates nor embeds."""

    name: str
    version: int = 1
    created_s: int = 0
    triton_name: str = "m.1"

    async def ready(self) -> bool:
        return True


def served(version: int, name: str = "m") -> ServedModel:
    return ServedModel(name, FakePipeline(), version=version)


def lineup(split: ModelSplit, *loaded: int) -> dict[str, Lineup]:
    return {"m": Lineup("m", {version: served(version) for version in loaded}, split)}


def registry_of(split: ModelSplit, *loaded: int) -> Registry:
    registry = Registry()
    registry.publish(lineup(split, *loaded))
    return registry


def record(number: int = 0, **fields: str) -> Record:
    made = Record("/v1/completions", f"cmpl-{number}", LOCAL_CALLER)
    for name, value in fields.items():
        setattr(made, name, value)
    return made


async def complete(router: RunningRouter, model: str, **headers: str) -> httpx.Response:
    body = {"model": model, "prompt": "hi"}
    return await router.http.post("/v1/completions", json=body, headers=headers)


def serve_two(router: RunningRouter, weight_of_second: float = 0.0) -> None:
    """Two releases of MODEL that answer with their number."""
    releases = {
        version: ServedModel(
            MODEL,
            FakePipeline(lambda call, version=version: words(str(version))),  # type: ignore[misc] # bound now
            ChatTemplate(TEMPLATE),
            version=version,
        )
        for version in (1, 2)
    }
    split = ModelSplit(MODEL, ((2, weight_of_second), (1, 1 - weight_of_second)), "salt")
    others = {name: each for name, each in router.parts.models.lineups.items() if name != MODEL}
    router.parts.models.publish({MODEL: Lineup(MODEL, releases, split), **others})


async def test_a_release_is_pinned_by_its_name_or_by_a_header(router: RunningRouter) -> None:
    serve_two(router)
    pinned = {"x-inflight-release": "2"}
    answers = [
        await complete(router, MODEL),
        await complete(router, f"{MODEL}@2"),
        await complete(router, MODEL, **pinned),
        await complete(router, f"{MODEL}@1", **pinned),  # the name is the nearer of the two
    ]
    assert [answer.json()["choices"][0]["text"] for answer in answers] == ["1", "2", "2", "1"]
    assert [answer.headers["x-inflight-release"] for answer in answers] == ["1", "2", "2", "1"]
    assert {answer.json()["model"] for answer in answers} == {MODEL}


async def test_streams_chats_and_responses_can_be_pinned_and_name_their_release(
    router: RunningRouter,
) -> None:
    serve_two(router)
    chat = {"model": f"{MODEL}@2", "messages": QUESTION}
    for path, body in (
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", {**chat, "stream": True}),
        ("/v1/responses", {"model": f"{MODEL}@2", "input": "hi"}),
        ("/v1/responses", {"model": f"{MODEL}@2", "input": "hi", "stream": True}),
    ):
        answer = await router.http.post(path, json=body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-inflight-release"] == "2", (path, body)


async def test_a_failed_answer_names_its_release(router: RunningRouter) -> None:
    router.pipeline.script = lambda call: [InflightError(ErrorKind.ENGINE_FAILED, "it is away")]
    answer = await complete(router, MODEL)
    assert (answer.status_code, answer.headers["x-inflight-release"]) == (503, "1")
    assert "x-inflight-release" not in (await complete(router, "other")).headers
    assert "x-inflight-release" not in (await router.http.get("/v1/models")).headers


async def test_an_embedding_model_can_be_pinned(router: RunningRouter) -> None:
    for name, status in ((f"{EMBEDDER}@1", 200), (f"{EMBEDDER}@2", 404)):
        answer = await router.http.post("/v1/embeddings", json={"model": name, "input": "hi"})
        assert answer.status_code == status
        assert answer.headers.get("x-inflight-release") == ("1" if status == 200 else None)


async def test_a_model_is_shown_by_its_pin_and_listed_once(router: RunningRouter) -> None:
    serve_two(router)
    shown = await router.http.get(f"/v1/models/{MODEL}@2")
    assert (shown.status_code, shown.json()["id"]) == (200, MODEL)
    assert shown.json()["max_model_len"] > 0
    embedder = (await router.http.get(f"/v1/models/{EMBEDDER}")).json()
    assert embedder["max_model_len"] > 0
    assert embedder["dimensions"] > 0
    assert (await router.http.get(f"/v1/models/{MODEL}@3")).status_code == 404
    listed = [model["id"] for model in (await router.http.get("/v1/models")).json()["data"]]
    assert len(set(listed)) == len(listed)
    assert MODEL in listed


ODD = [
    "m@",
    "m@0",
    "m@x",
    "m@01",
    "m@-1",
    "m@1@2",
    "@1",
    "@",
    "x@1",
    "m@1 ",
    "m" * 300,
    f"m@{'1' * 300}",
    "\0",
]


@pytest.mark.parametrize("name", ["other", *ODD])
def test_odd_model_names_are_not_found(name: str) -> None:
    with pytest.raises(InflightError) as refused:
        registry_of(HALF, 1, 2).find(name, record())
    shown = name if name.isprintable() and len(name) <= 64 else "that name"
    assert refused.value.kind is ErrorKind.MODEL_NOT_FOUND
    assert str(refused.value) == f"The model '{shown}' does not exist; GET /v1/models lists all models"
    assert refused.value.param == "model"


@pytest.mark.parametrize("header", ["x", "0", "m@2", "2 ", "1" * 5000])
def test_an_odd_release_header_is_a_404(header: str) -> None:
    with pytest.raises(InflightError) as refused:
        registry_of(HALF, 1, 2).find("m", record(pinned_release=header))
    assert refused.value.kind is ErrorKind.MODEL_NOT_FOUND
    assert len(str(refused.value)) < 200


def test_a_release_is_served_as_long_as_it_is_in_the_lineup() -> None:
    registry = registry_of(HALF, 2)
    served_now = [registry.serves(*which) for which in (("m", "2"), ("m", "1"), ("n", "2"), ("m", ""))]
    assert served_now == [True, False, False, False]


def test_a_pin_to_a_release_that_is_not_loaded_lists_the_loaded_ones() -> None:
    with pytest.raises(InflightError, match=r"'m@3' is not served; there are m@1, m@2") as refused:
        registry_of(HALF, 2, 1).find("m@3", record())
    assert refused.value.kind is ErrorKind.MODEL_NOT_FOUND


async def test_a_key_for_a_model_may_use_its_pins_and_nothing_else(router: RunningRouter) -> None:
    serve_two(router)
    scopes = frozenset({Scope.INFERENCE, Scope.RELEASES_PIN})
    key = await router.new_key(await router.new_tenant(), scopes, models=frozenset({MODEL}))
    headers = {"authorization": f"Bearer {key}"}
    assert (await complete(router, f"{MODEL}@2", **headers)).status_code == 200
    assert (await complete(router, MODEL, **headers, **{"x-inflight-release": "2"})).status_code == 200
    assert (await complete(router, "no-template@1", **headers)).status_code == 403
    assert (await router.http.get(f"/v1/models/{MODEL}@2", headers=headers)).status_code == 200
    assert (await router.http.get("/v1/models/no-template@1", headers=headers)).status_code == 403


async def test_only_a_key_with_the_scope_reaches_a_release_that_is_not_the_stable_one(
    router: RunningRouter,
) -> None:
    """A canary, a shadow or a standby: they are loaded, and not yet or no longer for everybody."""
    serve_two(router)
    headers = {"authorization": f"Bearer {await router.new_key(await router.new_tenant())}"}
    refusals = [
        await complete(router, f"{MODEL}@2", **headers),
        await complete(router, MODEL, **headers, **{"x-inflight-release": "2"}),
        await complete(router, f"{MODEL}@3", **headers),  # nor does it learn which there are
    ]
    assert {refused.status_code for refused in refusals} == {403}
    assert len({refused.json()["error"]["message"] for refused in refusals}) == 1
    assert "lacks the scope releases:pin" in refusals[0].json()["error"]["message"]
    for name, more in ((f"{MODEL}@1", {}), (MODEL, {"x-inflight-release": "1"})):
        assert (await complete(router, name, **headers, **more)).status_code == 200


async def test_usage_the_log_and_the_metrics_name_the_release(
    router: RunningRouter, caplog: pytest.LogCaptureFixture
) -> None:
    serve_two(router)
    with caplog.at_level(logging.INFO, logger="router.app"):
        await complete(router, f"{MODEL}@2")
    assert f"model={MODEL} release=2 tenant=local" in caplog.text
    who = {"model": MODEL, "tenant": "local"}
    assert router.metric("inflight_requests_ended_total", outcome="finished", release="2", **who) == 1
    assert router.metric("inflight_requests_ended_total", outcome="finished", release="1", **who) == 0
    await router.usage("local")
    with router.parts.tenancy.store.read() as connection:
        rows = connection.execute(sql.select(usage.c.model, usage.c.model_version)).all()
    assert [tuple(row) for row in rows] == [(MODEL, "2")]


async def test_a_request_refused_before_admission_counts_for_no_release(router: RunningRouter) -> None:
    await router.complete(temperature=9)
    await router.http.post("/v1/completions", json={"model": EMBEDDER, "prompt": "hi"})
    labels = {"route": "/v1/completions", "status": "400", "model": "", "tenant": "local"}
    assert router.metric("inflight_requests_total", release="", **labels) == 2


@pytest.mark.parametrize(
    ("sticky", "fixed"),
    [
        (Sticky.USER, {"user": "ann"}),
        (Sticky.CONVERSATION, {"conversation": "c1", "user": "ann"}),
        (Sticky.TENANT, {}),
    ],
)
def test_a_sticky_key_stays_with_one_release_and_others_do_not(sticky: Sticky, fixed: dict[str, str]) -> None:
    registry = registry_of(replace(HALF, sticky=sticky), 1, 2)
    same = {registry.find("m", record(number, **fixed)).version for number in range(50)}
    assert len(same) == 1
    if fixed:
        changing = "user" if sticky is Sticky.USER else "conversation"
        others = {
            registry.find("m", record(0, **{**fixed, changing: f"{number}"})).version for number in range(50)
        }
        assert others == {1, 2}


@pytest.mark.parametrize("field", ["user", "header"])
async def test_over_http_the_body_names_the_user_and_a_header_the_conversation(
    router: RunningRouter, field: str
) -> None:
    serve_two(router, 0.5)
    found = router.parts.models.lineups[MODEL]
    sticky = Sticky.USER if field == "user" else Sticky.CONVERSATION
    lineups = {MODEL: replace(found, split=replace(found.split, sticky=sticky))}
    router.parts.models.publish(lineups)
    answered: dict[str, set[str]] = {}
    for number in range(24):
        who = f"who-{number % 6}"
        body = {"model": MODEL, "prompt": "hi", **({"user": who} if field == "user" else {})}
        headers = {} if field == "user" else {"x-inflight-conversation": who}
        answer = await router.http.post("/v1/completions", json=body, headers=headers)
        answered.setdefault(who, set()).add(answer.headers["x-inflight-release"])
    assert all(len(releases) == 1 for releases in answered.values())
    assert {release for releases in answered.values() for release in releases} == {"1", "2"}


def test_where_the_chosen_release_is_not_loaded_another_answers() -> None:
    registry = registry_of(HALF, 1)
    assert {registry.find("m", record(number)).version for number in range(20)} == {1}
    alone = ModelSplit("m", ((1, 1.0),), "salt", standby=2)
    assert registry_of(alone, 3, 2).find("m", record()).version == 2
    assert registry_of(alone, 3).find("m", record()).version == 3
    assert registry_of(alone, 3, 2).find("m").version == 2
    with pytest.raises(InflightError, match="no release of the model 'm' is loaded") as refused:
        registry_of(alone).find("m", record())
    assert refused.value.kind is ErrorKind.OVERLOADED


def test_the_rollout_step_that_chose_is_recorded_and_none_for_a_pin() -> None:
    split = ModelSplit("m", ((1, 1.0),), "salt").with_canary(2, 0.5, rollout_id=7, step=1)
    registry = registry_of(split, 1, 2)
    asked, pinned = record(1), record(2)
    registry.find("m", asked)
    registry.find("m@2", pinned)
    assert (asked.rollout, pinned.rollout) == ((7, 1), (None, 0))
    assert (asked.model_version in ("1", "2"), pinned.model_version) == (True, "2")


def test_a_lookup_without_a_request_gets_the_stable_release() -> None:
    split = ModelSplit("m", ((1, 1.0),), "salt").with_canary(2, 1.0, rollout_id=7, step=3)
    assert registry_of(split, 1, 2).find_any("m").version == 1
    assert [model.version for model in registry_of(split, 1, 2)] == [1]


def test_a_shadow_gets_its_share_and_never_its_own_answers() -> None:
    split = ModelSplit("m", ((1, 1.0),), "salt", shadow=Shadow(2, 1.0))
    registry = registry_of(split, 1, 2)
    asked, pinned = record(), record()
    registry.find("m", asked)
    registry.find("m@2", pinned)
    asked.model = pinned.model = "m"
    found = registry.shadow_of(asked)
    assert found is not None
    assert found.version == 2
    assert registry.shadow_of(pinned) is None
    assert registry.shadow_of(record()) is None
    assert registry_of(split, 1).shadow_of(asked) is None


def test_a_tensor_model_is_refused_for_text_and_embeddings_with_the_right_path() -> None:
    registry = Registry()
    thing = ServedThing("m")
    registry.publish({"m": Lineup("m", {1: thing}, ModelSplit("m", ((1, 1.0),), "salt"))})
    with pytest.raises(InflightError, match="takes tensors and generates no text; use /v2/models"):
        registry.find("m")
    with pytest.raises(InflightError, match="makes no embeddings; no embedding model is served here"):
        registry.find_embedder("m")
    assert registry.find_any("m") is thing
    assert registry.of(ServedModel) == ()


def test_a_request_sees_releases_and_split_of_one_moment() -> None:
    """While one thread publishes, each answer is of one of the two worlds, whole."""
    old = lineup(ModelSplit("m", ((1, 1.0),), "old"), 1)
    new = lineup(ModelSplit("m", ((2, 1.0),), "new"), 2)
    registry = Registry()
    registry.publish(old)
    done = threading.Event()

    def publish() -> None:
        for number in range(2_000):
            registry.publish(new if number % 2 else old)
        done.set()

    publisher = threading.Thread(target=publish)
    publisher.start()
    seen = set()
    while not done.is_set():
        asked = record()
        chosen = registry.find("m", asked)
        assert asked.model_version == str(chosen.version)
        seen.add(chosen.version)
    publisher.join()
    assert seen <= {1, 2}
    assert registry.find("m").version == 2
