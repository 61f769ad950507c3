"""Every route asks who calls, and whether that caller may send a request now, before it does anything."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import httpx
import pytest
from tritonclient.grpc import service_pb2
from tritonclient.grpc import service_pb2_grpc as grpc_service

from router import openapi
from router.app import all_routes
from router.content.documents.documents import Documents
from router.core.record import Record
from router.core.tenant import NOBODY, Limits, Role, Scope
from router.kserve import http as kserve_http
from router.request import permit
from router.request.routes import Route
from router.request.token_counting import Tokenizers
from router.safety.guard import Safety
from router.store.database import StoreAccess
from router.tenants.rbac import Action, Actor, allows
from router.tenants.tenancy import Tenancy
from tests.pace import patience
from tests.router.kserve.running import RunningKserve, running_kserve

OPEN = {
    ("GET", "/"),
    ("GET", "/version"),
    ("GET", "/health"),
    ("GET", "/ping"),
    ("GET", "/health/live"),
    ("GET", "/health/ready"),
    ("GET", "/v2/health/live"),
    ("GET", "/v2/health/ready"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    # Files that tell nothing, and what a caller learns of itself alone.
    ("GET", "/ui"),
    ("GET", "/ui/{file}"),
}
OPEN_METHODS = {"ServerLive", "ServerReady"}


@pytest.fixture
async def kserve() -> AsyncIterator[RunningKserve]:
    async with running_kserve() as running:
        yield running


@pytest.fixture
def work(kserve: RunningKserve, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was done for requests: in the store, with a tokenizer, with a document, for an administrator."""
    done: list[str] = []
    watched = [
        (StoreAccess, "_run"),
        (Tenancy, "administer"),
        (Tenancy, "consult"),
        (Tokenizers, "count"),
        (Tokenizers, "_of"),
        (Safety, "broken_rules"),
        (Documents, "read"),
    ]
    for owner, name in watched:
        real = getattr(owner, name)

        def spy(*given: Any, real: Any = real, name: str = name) -> Any:
            done.append(name)
            return real(*given)

        monkeypatch.setattr(owner, name, spy)
    return done


def every_route(kserve: RunningKserve) -> Iterator[Route]:
    own = [*all_routes(kserve.router.parts), *kserve_http.routes(kserve.door)]
    yield from own
    yield from openapi.routes(own)


async def ask(client: httpx.AsyncClient, route: Route, key: str) -> httpx.Response:
    kind = route.takes or "application/json"
    headers = {"authorization": f"Bearer {key}", "content-type": kind}
    path = re.sub(r"\{[^}]*\}", "tiny", route.path)
    return await client.request(route.method, path, headers=headers, content=b"{}")


async def test_a_caller_without_requests_left_is_refused_by_every_route_before_any_work(
    kserve: RunningKserve, work: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    router = kserve.router
    tenant = await router.new_tenant(limits=Limits(requests_per_min=0))
    key = await router.new_key(tenant, frozenset(Scope), Role.OWNER)
    monkeypatch.setattr(permit, "_ADMINISTRATION", Limits(requests_per_min=0))
    work.clear()
    answered = set()
    async with httpx.AsyncClient(
        base_url=f"http://{kserve.http_url}", trust_env=False, verify=False, timeout=patience(30)
    ) as client:
        for route in every_route(kserve):
            response = await ask(client, route, key)
            if response.status_code != 429:
                answered.add((route.method, route.path))
    assert answered == OPEN
    assert work == []
    assert kserve.triton.requests == []
    assert router.pipeline.calls == []


async def test_a_key_without_the_scope_is_refused_by_every_route_before_any_work(
    kserve: RunningKserve, work: list[str]
) -> None:
    tenant = await kserve.router.new_tenant()
    for_inference = await kserve.router.new_key(tenant, frozenset({Scope.INFERENCE}))
    for_files = await kserve.router.new_key(tenant, frozenset({Scope.FILES}))
    work.clear()
    answered = set()
    async with httpx.AsyncClient(
        base_url=f"http://{kserve.http_url}", trust_env=False, verify=False, timeout=patience(30)
    ) as client:
        for route in every_route(kserve):
            key = for_files if route.scope is Scope.INFERENCE else for_inference
            if (await ask(client, route, key)).status_code != 403:
                answered.add((route.method, route.path))
    assert answered == OPEN
    assert work == []


async def test_administration_works_on_for_who_has_used_up_all_other_requests(kserve: RunningKserve) -> None:
    tenant = await kserve.router.new_tenant(limits=Limits(requests_per_min=0))
    key = await kserve.router.new_key(tenant, frozenset(Scope), Role.OWNER)
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(
        base_url=f"http://{kserve.http_url}", trust_env=False, verify=False, timeout=patience(30)
    ) as client:
        assert (await client.get(f"/admin/tenants/{tenant}/keys", headers=headers)).status_code == 200
        assert (await client.get("/v1/models", headers=headers)).status_code == 429


async def test_a_caller_without_requests_left_is_refused_by_every_grpc_method(
    kserve: RunningKserve, work: list[str]
) -> None:
    tenant = await kserve.router.new_tenant(limits=Limits(requests_per_min=0))
    metadata = (("authorization", f"Bearer {await kserve.router.new_key(tenant)}"),)
    work.clear()
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    answered = set()
    async with grpc.aio.insecure_channel(kserve.grpc_url) as channel:
        stub = grpc_service.GRPCInferenceServiceStub(channel)
        for method in service.methods:
            request = getattr(service_pb2, method.input_type.name)()
            call = getattr(stub, method.name)
            try:
                if method.name == "ModelStreamInfer":
                    async for answer in call(iter([request]), metadata=metadata):
                        assert "limit of requests" in answer.error_message
                        raise grpc.aio.UsageError("refused")
                else:
                    await call(request, metadata=metadata)
            except grpc.aio.UsageError:
                continue
            except grpc.aio.AioRpcError as error:
                if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED:
                    continue
            answered.add(method.name)
    assert answered == OPEN_METHODS
    assert work == []
    assert kserve.triton.requests == []


def test_a_request_is_nobodys_until_its_caller_is_known() -> None:
    record = Record("/v1/models", "req-1")
    assert record.caller is NOBODY
    assert not NOBODY.key.scopes
    assert not NOBODY.user.platform_admin
    assert NOBODY.key.models == frozenset()
    nobody = Actor.of(NOBODY.user, NOBODY.key.scopes)
    assert not any(allows(nobody, action, NOBODY.organisation.id) for action in Action)
    assert {NOBODY.key_limits.requests_per_min, NOBODY.organisation_limits.requests_per_min} == {0}
