"""Every operation of /openapi.json, asked in ways that nobody thought of: no 5xx, and every error told."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import hypothesis
import pytest
import requests
import schemathesis
import uvloop
from hypothesis import HealthCheck, Phase
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance
from schemathesis.schemas import APIOperation

from router.app import App
from router.http.listener import Listener
from router.identity import Doorkeeper
from router.kserve import http as kserve_http
from router.tenancy.model import Role, Scope
from router.tenancy.rbac import SYSTEM
from tests.router.kserve.running import running_kserve
from tests.router.running import EMBEDDER, MODEL

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
        service = running.router.service
        tenancy = service.tenancy
        own = await running.router.new_tenant("operator")
        key = await running.router.new_key(own, frozenset(Scope), Role.OWNER, platform_admin=True)
        tenant = await running.router.new_tenant("acme")
        user = await tenancy.administer(lambda it: it.create_user(SYSTEM, tenant, "ann", Role.OWNER))
        made, _ = await tenancy.administer(lambda it: it.create_key(SYSTEM, tenant, user.id, "laptop"))
        app = App(service, Doorkeeper(tenancy, is_private=True), kserve_http.routes(running.door))
        listener = Listener(app, app.refuse, upload_limit=app.upload_limit)
        port = await listener.start("127.0.0.1", 0)
        yield f"http://127.0.0.1:{port}", key, {"tenant": tenant, "user": user.id, "key": made.id}
        await listener.close()


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
    return {
        "file_id": file_id,
        "batch_id": post("/v1/batches", json=batch),
        "conversation_id": conversation_id,
        "item_id": items[0]["id"],
        "response_id": post("/v1/responses", json={"model": MODEL, "input": "hi"}),
        "id": MODEL,
        "model": MODEL,
        "name": MODEL,
        "version": "1",
        "region": "x",
    }


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

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    assert started.wait(30)
    ((url, key, real),) = found
    with requests.Session() as session:
        session.trust_env = False
        session.headers["authorization"] = f"Bearer {key}"
        document = session.get(f"{url}/openapi.json").json()
        yield Target(url, document, session, {**real, **make_things(url, session)})
    asked_to_stop.set()
    thread.join()


def cases(operation: APIOperation[Any, Any, Any, Any], real: dict[str, str]) -> st.SearchStrategy[Any]:
    """As described, on things that exist and on others, and not as described."""
    there = {name: real[name] for name in operation_names(operation)}
    known = operation.as_strategy(GenerationMode.POSITIVE, path_parameters=there).map(in_earnest)
    return st.one_of(
        known,
        operation.as_strategy(GenerationMode.POSITIVE),
        operation.as_strategy(GenerationMode.NEGATIVE, path_parameters=there).map(in_earnest),
        operation.as_strategy(GenerationMode.NEGATIVE),
    )


def operation_names(operation: APIOperation[Any, Any, Any, Any]) -> list[str]:
    return [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]


def in_earnest(case: Any) -> Any:
    """With a model that is served and roles that there are, or nothing else would ever be judged."""
    if isinstance(case.body, dict) and isinstance(case.body.get("model"), str):
        case.body["model"] = EMBEDDER if "embeddings" in case.path else MODEL
        for message in case.body.get("messages") or ():
            if isinstance(message, dict) and isinstance(message.get("role"), str):
                message["role"] = "user"
    return case


def test_nothing_that_is_asked_breaks_the_router(target: Target, full: bool) -> None:
    schema = schemathesis.openapi.from_dict(target.document)
    operations = [each.ok() for each in schema.get_all_operations()]
    operations.sort(key=lambda each: each.method.lower() == "delete")
    import time
    from collections import Counter
    for operation in operations:
        t=time.process_time()
        asked = []
        texts= Counter()

        @hypothesis.seed(1)
        @hypothesis.settings(
            max_examples=20,
            deadline=None,
            database=None,
            derandomize=False,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
        )
        @hypothesis.given(case=cases(operation, target.real))
        def ask(case: Any) -> None:
            response = case.call(base_url=target.url, session=target.session, timeout=10, headers={"authorization": target.session.headers["authorization"]})
            asked.append(response.status_code)
            if response.status_code>=400: texts[response.text[:120]]+=1
            case.validate_response(response, checks=CHECKS)
        
        try:
            ask()
        except BaseException as e:
            print("FAILED", operation.method, operation.path, type(e), str(e)[:1500], getattr(e,'exceptions',None))
        print(operation.method, operation.path, f"{time.process_time()-t:.2f}", Counter(asked))
        if operation.method=="post":
            for k,v in texts.items(): print("      ",v,k)


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether tests run at their full length."""
    return bool(request.config.getoption("--full"))
