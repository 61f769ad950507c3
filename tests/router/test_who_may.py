"""Who gets in where: every route and gRPC method, tried by every kind of caller, against a table."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf.message_factory import GetMessageClass

from router import openapi
from router.admin import session
from router.app import all_routes
from router.core.actions import Action, Reach
from router.core.record import Record
from router.core.tenant import PLATFORM_SCOPES, Role, Scope
from router.http.exchange import Exchange
from router.kserve import http as kserve_http
from router.kserve.descriptions import NOT_OFFERED_METHODS
from router.kserve.reception import ACTIONS
from router.kserve.standard_services import HEALTH, INFERENCE, REFLECTION
from router.request.routes import Route
from tests.router.kserve.running import RunningKserve, running_kserve

CALLERS = ("nobody", "metrics", "member", "admin", "owner", "stranger", "auditor", "platform")
# Written out: whoever adds a route says here who gets in, and thinks about it once more.
TABLE: dict[str, str] = {
    "member admin owner stranger platform": """
        POST,GET /v1/chat/completions
        GET,POST,DELETE /v1/chat/completions/{completion_id}
        GET /v1/chat/completions/{completion_id}/messages
        POST /v1/completions
        POST /v1/embeddings
        POST /v1/rerank
        POST /rerank
        POST /v2/rerank
        POST /v1/score
        POST /score
        POST /v1/responses
        POST /v1/responses/input_tokens
        POST /v1/responses/compact
        GET,DELETE /v1/responses/{response_id}
        GET /v1/responses/{response_id}/input_items
        POST /v1/responses/{response_id}/cancel
        POST /tokenize
        POST /detokenize
        GET /tokenizer_info
        POST /v1/moderations
        POST,GET /v1/conversations
        GET,POST,DELETE /v1/conversations/{conversation_id}
        GET /v1/conversations/{conversation_id}/export
        GET,POST /v1/conversations/{conversation_id}/items
        GET,DELETE /v1/conversations/{conversation_id}/items/{item_id}
        GET /v1/models
        GET /v1/models/{id}
        POST /v1/messages
        POST /v1/messages/count_tokens
        POST /api/chat
        POST /api/generate
        POST /api/embed
        POST /api/embeddings
        GET /api/tags
        GET /api/ps
        POST /api/show
        POST /api/pull
        POST /api/push
        POST /api/create
        POST /api/copy
        DELETE /api/delete
        POST,GET /v1/files
        GET,DELETE /v1/files/{file_id}
        GET /v1/files/{file_id}/content
        POST,GET /v1/batches
        GET /v1/batches/{batch_id}
        POST /v1/batches/{batch_id}/cancel
        GET /v1/requests/{request}
        GET /v2
        GET /v2/models/stats
        POST /v2/repository/index
        GET /v2/models/{name}
        GET /v2/models/{name}/ready
        GET /v2/models/{name}/config
        GET /v2/models/{name}/stats
        POST /v2/models/{name}/infer
        POST /v2/models/{name}/generate
        POST /v2/models/{name}/generate_stream
        GET /v2/models/{name}/versions/{version}
        GET /v2/models/{name}/versions/{version}/ready
        GET /v2/models/{name}/versions/{version}/config
        GET /v2/models/{name}/versions/{version}/stats
        POST /v2/models/{name}/versions/{version}/infer
        POST /v2/models/{name}/versions/{version}/generate
        POST /v2/models/{name}/versions/{version}/generate_stream
    """,
    "nobody metrics member admin owner stranger auditor platform": """
        GET /api/version
        GET /health/live
        GET /health/ready
        GET /health
        GET /ping
        GET /ui
        GET /ui/{file}
        GET /v2/health/live
        GET /v2/health/ready
        POST,DELETE /admin/session
        GET /
        GET /version
        GET /openapi.json
        GET /docs
    """,
    "metrics auditor platform": """
        GET /metrics
    """,
    "platform": """
        POST /admin/tenants
        PUT /admin/tenants/{tenant}/limits
        PUT,DELETE /admin/prices/{model}
        POST /admin/releases/{model}/versions/{version}/load
        POST /admin/releases/{model}/versions/{version}/unload
        PUT /admin/releases/{model}/split
        POST /admin/releases/{model}/canary
        PUT /admin/releases/{model}/tolerance
        POST /admin/releases/{model}/promote
        POST /admin/releases/{model}/rollback
        POST /admin/releases/{model}/pause
        POST /admin/releases/{model}/resume
        PUT,DELETE /admin/objectives/{model}/{tier}
        DELETE /admin/objectives/{model}
        POST /admin/tuning/{model}/pause
        POST /admin/tuning/{model}/resume
        POST /admin/releases
        DELETE /admin/additions/{addition}
        DELETE /admin/tenants/{tenant}
    """,
    "auditor platform": """
        GET /admin/tenants
        GET /admin/usage
        GET /admin/audit
        GET /admin/releases
        GET /admin/releases/{model}
        GET /admin/releases/{model}/versions/{version}
        GET /admin/releases/{model}/tolerance
        GET /admin/releases/{model}/rollouts
        GET /admin/releases/{model}/events
        GET /admin/objectives
        GET /admin/objectives/{model}
        GET /admin/tuning
        GET /admin/tuning/{model}
        GET /admin/tuning/{model}/history
        GET /admin/release-sources
        GET /admin/additions
        GET /admin/additions/{addition}
        GET /admin/now
        GET /admin/now/stream
        GET /admin/simulations/hours
        POST /admin/simulations
    """,
    "owner auditor platform": """
        GET /admin/tenants/{tenant}/export
    """,
    "admin owner platform": """
        POST /admin/tenants/{tenant}/users
        PATCH,DELETE /admin/tenants/{tenant}/users/{user}
        POST /admin/tenants/{tenant}/keys/{key}/rotate
        DELETE /admin/tenants/{tenant}/keys/{key}
        PUT /admin/tenants/{tenant}/keys/{key}/limits
    """,
    "admin owner auditor platform": """
        GET /admin/tenants/{tenant}/users
    """,
    "member admin owner platform": """
        POST /admin/tenants/{tenant}/keys
    """,
    "member admin owner auditor platform": """
        GET /admin/tenants/{tenant}/keys
        GET /admin/tenants/{tenant}/limits
        GET /admin/tenants/{tenant}/usage
    """,
    "member admin owner stranger auditor platform": """
        GET /admin/prices
        GET /v1/usage
    """,
    "admin owner stranger auditor platform": """
        GET /admin/requests
        GET /admin/requests/{request}
    """,
    "owner stranger auditor platform": """
        GET /admin/requests/{request}/content
    """,
    "": """
        POST /v2/repository/models/{name}/load
        POST /v2/repository/models/{name}/unload
        GET,POST /v2/trace/setting
        GET,POST /v2/models/{name}/trace/setting
        GET,POST /v2/logging
        GET /v2/systemsharedmemory/status
        GET /v2/systemsharedmemory/region/{region}/status
        POST /v2/systemsharedmemory/region/{region}/register
        POST /v2/systemsharedmemory/unregister
        POST /v2/systemsharedmemory/region/{region}/unregister
        GET /v2/cudasharedmemory/status
        GET /v2/cudasharedmemory/region/{region}/status
        POST /v2/cudasharedmemory/region/{region}/register
        POST /v2/cudasharedmemory/unregister
        POST /v2/cudasharedmemory/region/{region}/unregister
    """,
    "metrics member admin owner stranger auditor platform": """
        GET /admin/session
    """,
}


USERS = {"member", "admin", "owner", "stranger", "platform"}


@pytest.fixture
async def kserve() -> AsyncIterator[RunningKserve]:
    async with running_kserve() as running:
        yield running


def every_route(kserve: RunningKserve) -> Iterator[Route]:
    parts = kserve.router.parts
    own = [*all_routes(parts), *kserve_http.routes(kserve.door)]
    own += session.routes(parts.tenancy.sessions, kserve.router.app._doorkeeper)
    yield from own
    yield from openapi.routes(own)


async def keys_of(kserve: RunningKserve, tenant: str) -> dict[str, str | None]:
    """By the caller; those of `tenant` have every scope that a tenant can hand out."""
    router, usual = kserve.router, frozenset(Scope) - PLATFORM_SCOPES
    other, reads = await router.new_tenant("other"), {Scope.ADMIN_READ, Scope.USAGE_READ, Scope.METRICS_READ}
    return {
        "nobody": None,
        "metrics": await router.new_key("local", frozenset({Scope.METRICS_READ}), Role.VIEWER),
        "member": await router.new_key(tenant, usual, Role.MEMBER),
        "admin": await router.new_key(tenant, usual, Role.ADMIN),
        "owner": await router.new_key(tenant, usual, Role.OWNER),
        "stranger": await router.new_key(other, usual, Role.OWNER),
        "auditor": await router.new_key("local", frozenset(reads), Role.VIEWER, platform_admin=True),
        "platform": await router.new_key("local", frozenset(Scope), Role.OWNER, platform_admin=True),
    }


async def gets_in(client: httpx.AsyncClient, route: Route, tenant: str, key: str | None) -> bool:
    headers = {"content-type": route.takes or "application/json"}
    if key is not None:
        headers["authorization"] = f"Bearer {key}"
    path = re.sub(r"\{[^}]*\}", "tiny", route.path.replace("{tenant}", tenant))
    async with client.stream(route.method, path, headers=headers, content=b"{}") as response:
        return response.status_code not in (401, 403)


def expected() -> dict[str, str]:
    """Who gets in, by method and path."""
    found = {}
    for who, lines in TABLE.items():
        for line in lines.split("\n"):
            methods, _, path = line.strip().partition(" ")
            found.update({f"{method} {path}": who for method in methods.split(",") if method})
    return found


async def test_every_route_lets_in_whom_the_table_names_and_nobody_else(kserve: RunningKserve) -> None:
    tenant = await kserve.router.new_tenant()
    keys = await keys_of(kserve, tenant)
    # The one that ends the tenant is last.
    routes = sorted(every_route(kserve), key=lambda each: each.action is Action.ORGANISATION_DELETE)
    found = {}
    async with httpx.AsyncClient(base_url=f"http://{kserve.http_url}", trust_env=False, verify=False) as http:
        for route in routes:
            who = [name for name in CALLERS if await gets_in(http, route, tenant, keys[name])]
            found[f"{route.method} {route.path}"] = " ".join(who)
    assert found == expected()


async def test_a_route_without_an_action_cannot_be_made(kserve: RunningKserve) -> None:
    async def endpoint(exchange: Exchange, record: Record) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="action"):
        Route("GET", "/everything", endpoint, "Everything of everybody")  # type: ignore[call-arg]  # on purpose
    assert all(isinstance(route.action, Action) for route in every_route(kserve))


async def test_what_concerns_all_tenants_never_needs_a_scope_alone(kserve: RunningKserve) -> None:
    """But for what only the platform hands out."""
    for route in every_route(kserve):
        if route.action.reach is Reach.PLATFORM and route.scope not in PLATFORM_SCOPES:
            assert {"member", "admin", "owner", "stranger"}.isdisjoint(
                expected()[f"{route.method} {route.path}"].split()
            )


OPEN_METHODS = {"ServerLive", "ServerReady", "Check"}
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)


async def test_every_grpc_method_lets_in_whom_its_action_names(kserve: RunningKserve) -> None:
    keys = await keys_of(kserve, await kserve.router.new_tenant())
    methods = {each.name: each for service in (INFERENCE, HEALTH, REFLECTION) for each in service.methods}
    found: dict[str, set[str]] = {}
    async with grpc.aio.insecure_channel(kserve.grpc_url) as channel:
        for name, method in methods.items():
            answers = {caller: await answer_of(channel, method, key) for caller, key in keys.items()}
            if set(answers.values()) != {grpc.StatusCode.UNIMPLEMENTED}:
                found[name] = {caller for caller, code in answers.items() if code not in REFUSED}
    usual = {name: set() if name in NOT_OFFERED_METHODS else USERS for name in ACTIONS}
    assert found == {**usual, **{name: set(CALLERS) for name in OPEN_METHODS}}


async def answer_of(channel: grpc.aio.Channel, method: Any, key: str | None) -> grpc.StatusCode:
    metadata = () if key is None else (("authorization", f"Bearer {key}"),)
    path = f"/{method.containing_service.full_name}/{method.name}"
    request = GetMessageClass(method.input_type)().SerializeToString()
    try:
        if method.client_streaming:
            async for _ in channel.stream_stream(path, None, None)(iter([request]), metadata=metadata):
                pass
        else:
            await channel.unary_unary(path, None, None)(request, metadata=metadata)
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK
