"""Every operation of /openapi.json, asked in ways that nobody thought of: no 5xx, and every error told."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
import requests
import uvloop
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st

from router.admin import now
from router.app import App
from router.console.pages import static_files
from router.control.releases.commands import ReleaseCommands
from router.core.tenant import LOCAL_CALLER, Role, Scope
from router.http.listener import Listener
from router.kserve import http
from router.request.identity import Doorkeeper
from router.store.database import Store
from router.tenants.rbac import SYSTEM
from tests.event_loops import ClosingLoop
from tests.pace import patience
from tests.router.control.releases.stored import keep_release
from tests.router.kserve.running import running_kserve
from tests.router.running import EMBEDDER, MODEL

schemathesis = pytest.importorskip("schemathesis", reason="it needs Python 3.11")

from schemathesis.checks import not_a_server_error  # noqa: E402 - if it is there
from schemathesis.core.result import Ok  # noqa: E402 - if it is there
from schemathesis.generation import GenerationMode  # noqa: E402 - if it is there
from schemathesis.schemas import APIOperation  # noqa: E402 - if it is there
from schemathesis.specs.openapi.checks import (  # noqa: E402 - if it is there
    content_type_conformance,
    response_schema_conformance,
)

pytestmark = pytest.mark.timeout(900)
GONE = object()
CHECKS = [not_a_server_error, content_type_conformance, response_schema_conformance]
LINE = b'{"custom_id":"a","method":"POST","url":"/v1/completions","body":{"model":"tiny","prompt":"hi"}}\n'


@dataclass
class Target:
    """A router with everything on; `real` are values of the names in paths, of things that exist."""

    url: str
    document: dict[str, Any]
    session: requests.Session
    real: dict[str, str]


@asynccontextmanager
async def whole_router() -> AsyncIterator[tuple[str, str, dict[str, str]]]:
    """Its address, the key of an administrator of the platform, and a tenant with a user and a key."""
    async with running_kserve() as running:
        service = running.router.parts
        service.simulations.limit_s = 0.3  # who asks waits for it
        tenancy = service.tenancy
        own = await running.router.new_tenant("operator")
        key = await running.router.new_key(own, frozenset(Scope), Role.OWNER, platform_admin=True)
        tenant = await running.router.new_tenant("acme")
        user = await tenancy.administer(lambda it: it.create_user(SYSTEM, tenant, "ann", Role.OWNER))
        made, _ = await tenancy.administer(lambda it: it.create_key(SYSTEM, tenant, user.id, "laptop"))
        await asyncio.to_thread(release_twice, tenancy.store)
        doorkeeper = Doorkeeper(tenancy, is_private=True, keyless=LOCAL_CALLER)
        app = App(service, doorkeeper, http.routes(running.door))
        listener = Listener(app, app.refuse, body_terms=app.body_terms)
        port = await listener.start("127.0.0.1", 0)
        yield f"http://127.0.0.1:{port}", key, {"tenant": tenant, "user": user.id, "key": made.id}
        await listener.close()


def release_twice(store: Store) -> None:
    """MODEL has one release that gets everything, and one that could."""
    for version in (1, 2):
        keep_release(store, MODEL, version)
    ReleaseCommands(store, SYSTEM).promote(MODEL, 1)


def make_things(url: str, session: requests.Session) -> dict[str, str]:
    def post(path: str, **request: Any) -> str:
        answer = session.post(url + path, **request)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["id"])

    form: dict[str, Any] = {"files": {"file": ("a.jsonl", LINE)}, "data": {"purpose": "batch"}}
    file_id = post("/v1/files", **form)
    batch = {"input_file_id": file_id, "endpoint": "/v1/completions", "completion_window": "24h"}
    item = {"type": "message", "role": "user", "content": "hi"}
    conversation_id = post("/v1/conversations", json={"items": [item]})
    items = session.get(f"{url}/v1/conversations/{conversation_id}/items").json()["data"]
    answered = post("/v1/chat/completions", json={"model": MODEL, "messages": [QUESTION], "store": True})
    return {
        "file_id": file_id,
        "batch_id": post("/v1/batches", json=batch),
        "conversation_id": conversation_id,
        "item_id": items[0]["id"],
        "completion_id": answered,
        "request": answered,
        "file": f"{static_files()[0]}/main.js",
        "response_id": post("/v1/responses", json={"model": MODEL, "input": "hi"}),
        "id": MODEL,
        "model": MODEL,
        "tier": "standard",
        "name": MODEL,
        "version": "1",
        "region": "x",
        "addition": "add-x",
    }


def without_security(document: dict[str, Any]) -> dict[str, Any]:
    """Or most would be asked without a key, which is refused before anything else is looked at."""
    for methods in document["paths"].values():
        for operation in methods.values():
            operation.pop("security", None)
    return document


@pytest.fixture
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether tests run at their full length."""
    return bool(request.config.getoption("--thorough"))


@pytest.fixture(scope="module")
def target() -> Iterator[Target]:
    """In a thread with an event loop of its own: those who ask wait for answers."""
    started, asked_to_stop = threading.Event(), threading.Event()
    found: list[tuple[str, str, dict[str, str]]] = []

    async def serve() -> None:
        async with whole_router() as running:
            found.append(running)
            started.set()
            await asyncio.to_thread(asked_to_stop.wait)

    thread = threading.Thread(target=lambda: uvloop.run(serve(), loop_factory=ClosingLoop))
    thread.start()
    assert started.wait(patience(30))
    ((url, key, real),) = found
    with requests.Session() as session, pytest.MonkeyPatch.context() as patch:
        patch.setattr(now, "STREAM_S", 0.0)  # who asks waits until it ends
        session.trust_env = False
        session.headers["authorization"] = f"Bearer {key}"
        document = without_security(session.get(f"{url}/openapi.json").json())
        yield Target(url, document, session, {**real, **make_things(url, session)})
    asked_to_stop.set()
    thread.join()


def settings(examples: int) -> hypothesis.settings:
    """The same requests in every run."""
    return hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=[Phase.generate],
    )


def cases(operation: APIOperation[Any, Any, Any, Any], real: dict[str, str]) -> st.SearchStrategy[Any]:
    """As described, on things that exist and on others, and not as described."""
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]
    there = {name: real[name] for name in names}
    return st.one_of(
        operation.as_strategy(GenerationMode.POSITIVE, path_parameters=there).map(in_earnest),
        operation.as_strategy(GenerationMode.POSITIVE),
        operation.as_strategy(GenerationMode.NEGATIVE, path_parameters=there).map(in_earnest),
        operation.as_strategy(GenerationMode.NEGATIVE),
    )


def in_earnest(case: Any) -> Any:
    """With a model that is served, or nothing but its name would ever be judged."""
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = EMBEDDER if "embed" in case.path else MODEL
    return case


def test_every_operation_answers_any_input_as_described(target: Target, thorough: bool) -> None:
    schema = schemathesis.openapi.from_dict(target.document)
    schema.validate()
    found = list(schema.get_all_operations())
    operations = [each.ok() for each in found if isinstance(each, Ok)]
    assert len(operations) == len(found), "not a valid description"
    operations.sort(key=lambda each: each.method.lower() == "delete")
    well = set()
    for operation in operations:

        @settings(100 if thorough else 4)
        @hypothesis.given(case=cases(operation, target.real))
        def ask(case: Any) -> None:
            response = case.call(base_url=target.url, session=target.session, timeout=patience(60))
            case.validate_response(response, checks=CHECKS)
            if response.status_code < 300:
                well.add(case.operation.label)

        ask()
    assert len(operations) >= 90
    assert len(well) >= 50, "most of them were asked something that they could answer"


QUESTION = {"role": "user", "content": [{"type": "text", "text": "hi"}]}
FUNCTION = {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}}
OPTIONS = {
    "model": MODEL,
    "max_tokens": 3,
    "temperature": 0.5,
    "top_p": 0.9,
    "top_k": 2,
    "n": 2,
    "stop": ["x", "y"],
    "seed": 1,
    "logit_bias": {"1": 2.5},
    "presence_penalty": 0.1,
    "user": "ann",
}
GOOD: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **OPTIONS,
        "messages": [{"role": "system", "content": "s"}, QUESTION],
        "tools": [{"type": "function", "function": FUNCTION}],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
    },
    "/v1/completions": {**OPTIONS, "prompt": [[1, 2], [3]], "echo": True},
    "/v1/embeddings": {"model": EMBEDDER, "input": ["a", "b"], "encoding_format": "float", "dimensions": 2},
    "/v1/responses": {
        "model": MODEL,
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}],
        "instructions": "be brief",
        "text": {"format": {"type": "text"}},
        "tools": [{"type": "function", **FUNCTION}],
        "metadata": {"a": "b"},
        "include": ["message.output_text.logprobs"],
        "store": True,
    },
    "/v1/conversations": {
        "metadata": {"title": "t"},
        "items": [
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "1"},
        ],
    },
    "/v1/messages": {
        "model": MODEL,
        "max_tokens": 3,
        "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "hi"},
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "1"}]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
        "stop_sequences": ["x"],
        "metadata": {"user_id": "ann"},
        "output_config": {"effort": "low"},
        "stream": True,
    },
    "/api/chat": {
        "model": MODEL,
        "messages": [
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "tool_name": "f", "content": "1"},
        ],
        "tools": [{"type": "function", "function": FUNCTION}],
        "format": {"type": "object"},
        "options": {"num_predict": 3, "temperature": 0.5, "stop": ["x"], "num_ctx": 100, "mirostat": 0},
        "keep_alive": "5m",
    },
    "/api/generate": {"model": MODEL, "prompt": "hi", "raw": True, "format": "json", "stream": False},
    "/api/embed": {"model": EMBEDDER, "input": ["a", "b"], "dimensions": 2, "truncate": True},
    f"/v2/models/{MODEL}/infer": {
        "id": "1",
        "inputs": [
            {"name": "text_input", "shape": [1, 1], "datatype": "BYTES", "data": ["hi"]},
            {"name": "max_tokens", "shape": [1, 1], "datatype": "INT32", "data": [3]},
        ],
        "outputs": [{"name": "text_output", "parameters": {"binary_data": False}}],
        "parameters": {"inflight_tier": "batch"},
    },
    f"/v2/models/{EMBEDDER}/infer": {
        "inputs": [{"name": "TEXT", "shape": [1, 1], "datatype": "BYTES", "data": ["hi"]}]
    },
    f"/v2/models/{MODEL}/generate": {"text_input": "hi", "max_tokens": 3, "parameters": {"temperature": 0.5}},
}
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to everything inside a body."""
    if way:
        yield way
    for key in value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ():
        yield from places(value[key], (*way, key))


def changed(body: Any, way: tuple[Any, ...], change: Any) -> Any:
    copied = copy.deepcopy(body)
    place = copied
    for key in way[:-1]:
        place = place[key]
    if change is GONE:
        del place[way[-1]]
    else:
        place[way[-1]] = change
    return copied


@pytest.mark.parametrize("path", GOOD)
def test_a_valid_request_with_one_thing_changed_is_served_or_refused(
    target: Target, path: str, thorough: bool
) -> None:
    body = GOOD[path]
    ways = st.sampled_from(list(places(body)))

    @settings(1500 if thorough else 100)
    @hypothesis.given(way=ways, change=st.just(GONE) | VALUES)
    def ask(way: tuple[Any, ...], change: Any) -> None:
        response = target.session.post(
            target.url + path, json=changed(body, way, change), timeout=patience(60)
        )
        assert response.status_code < 500, response.text
        if response.status_code >= 400:
            error = response.json()["error"]
            assert error if path.startswith(("/v2", "/api")) else error["message"]

    assert target.session.post(target.url + path, json=body).status_code == 200
    ask()
