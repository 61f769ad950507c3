"""The administration over HTTP: tenants, users, keys, limits, prices, usage and the audit log."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

import msgspec

from router.admin import bodies
from router.admin.endpoint import Act, Administer, Asked, admin_route, listed
from router.core.actions import Action
from router.core.record import Record
from router.core.tenant import ApiKey, Limits, Price, UsageSummary
from router.http.exchange import Exchange
from router.request.routes import Route
from router.telemetry.prompt_log import PromptLog
from router.tenants.budget import day_of, month_of
from router.tenants.tenancy import Tenancy


def show_key(key: ApiKey) -> dict[str, Any]:
    """Without anything that its secret could be tried out with."""
    shown = asdict(key)
    for hidden in ("digest", "previous_digest"):
        del shown[hidden]
    return {**shown, "scopes": sorted(key.scopes), "models": sorted(key.models) if key.models else key.models}


def _create_key(asked: Asked) -> dict[str, Any]:
    body: bodies.KeyBody = asked.given
    key, text = asked.admin.create_key(
        asked.actor,
        asked.tenant,
        body.user_id,
        body.name,
        None if body.scopes is None else frozenset(body.scopes),
        None if body.models is None else frozenset(body.models),
        body.expires_at,
    )
    return {**show_key(key), "key": text}


def _rotate_key(asked: Asked) -> dict[str, Any]:
    key, text = asked.admin.rotate_key(asked.actor, asked.tenant, asked.values["key"], asked.given.grace_s)
    return {**show_key(key), "key": text}


def _set_limits(asked: Asked) -> dict[str, Any]:
    given = msgspec.structs.asdict(asked.given)
    limits = Limits(monthly_budget=given.pop("monthly_budget_microdollars"), **given)
    asked.admin.set_limits(asked.actor, asked.tenant, limits, asked.values.get("key"))
    return show_limits(limits)


def show_limits(limits: Limits) -> dict[str, Any]:
    shown = asdict(limits)
    return {"monthly_budget_microdollars": shown.pop("monthly_budget"), **shown}


def _list_limits(asked: Asked) -> dict[str, Any]:
    found = asked.admin.list_limits(asked.actor, asked.tenant)
    return {subject: show_limits(limits) for subject, limits in found.items()}


def _set_price(asked: Asked) -> dict[str, Any]:
    body: bodies.PriceBody = asked.given
    cached = body.prompt if body.cached_prompt is None else body.cached_prompt
    price = Price(asked.values["model"], body.prompt, cached, body.completion)
    asked.admin.set_price(asked.actor, price)
    return asdict(price)


def _usage(asked: Asked, tenant: str | None) -> dict[str, Any]:
    query: bodies.UsageQuery = asked.given
    today = day_of(time.time())
    since, until = query.since or f"{month_of(time.time())}-01", query.until or today
    by = tuple(filter(None, query.by.split(",")))
    found = asked.admin.usage(asked.actor, tenant, by, since, until)
    rows = [show_usage(by, each) for each in found]
    return {"object": "list", "since": since, "until": until, "data": rows}


def show_usage(by: tuple[str, ...], summary: UsageSummary) -> dict[str, Any]:
    shown = asdict(summary)
    group = dict(zip(by, shown.pop("group"), strict=True))
    return {**group, "cost_microdollars": shown.pop("cost"), **shown}


def _deleted(act: Callable[[Asked], None]) -> Act:
    def do(asked: Asked) -> dict[str, Any]:
        act(asked)
        return {"deleted": True}

    return do


class DeleteTenant(Administer):
    """What was logged of its prompts goes too."""

    def __init__(self, tenancy: Tenancy, prompt_log: PromptLog | None) -> None:
        super().__init__(tenancy, _deleted(lambda a: a.admin.delete_organisation(a.actor, a.tenant)), None)
        self._prompt_log = prompt_log

    async def _answer(self, exchange: Exchange, record: Record) -> bytes:
        answer = await super()._answer(exchange, record)
        if self._prompt_log is not None:
            await asyncio.to_thread(self._prompt_log.forget, record.values["tenant"])
        return answer


def routes(tenancy: Tenancy, prompt_log: PromptLog | None) -> list[Route]:
    route = partial(admin_route, tenancy)
    tenant, user, key = "/admin/tenants/{tenant}", "/users/{user}", "/keys/{key}"
    return [
        route(Action.ORGANISATION_CREATE, "POST", "/admin/tenants", "Create a tenant",
              lambda a: asdict(a.admin.create_organisation(a.actor, a.given.name)), bodies.TenantBody),
        route(Action.ORGANISATION_LIST, "GET", "/admin/tenants", "All tenants",
              lambda a: listed(a.admin.list_organisations(a.actor))),
        route(Action.ORGANISATION_EXPORT, "GET", f"{tenant}/export", "Export everything stored of a tenant",
              lambda a: a.admin.export_organisation(a.actor, a.tenant)),
        Route("DELETE", tenant, DeleteTenant(tenancy, prompt_log),
              "Delete a tenant and all it stored; its usage and the audit log stay",
              action=Action.ORGANISATION_DELETE, takes=""),
        route(Action.USER_WRITE, "POST", f"{tenant}/users", "Make a user",
              lambda a: asdict(a.admin.create_user(
                  a.actor, a.tenant, a.given.name, a.given.role, a.given.platform_admin)), bodies.UserBody),
        route(Action.USER_READ, "GET", f"{tenant}/users", "The users of a tenant",
              lambda a: listed(a.admin.list_users(a.actor, a.tenant))),
        route(Action.USER_WRITE, "PATCH", f"{tenant}{user}", "Change a user's role",
              lambda a: asdict(a.admin.set_role(a.actor, a.tenant, a.values["user"], a.given.role)),
              bodies.RoleBody),
        route(Action.USER_WRITE, "DELETE", f"{tenant}{user}", "Delete a user and revoke their keys",
              _deleted(lambda a: a.admin.delete_user(a.actor, a.tenant, a.values["user"]))),
        route(Action.KEY_WRITE_OWN,
              "POST", f"{tenant}/keys", "Create a key, shown only once", _create_key, bodies.KeyBody),
        route(Action.KEY_READ_OWN, "GET", f"{tenant}/keys", "The keys of a tenant, without their secrets",
              lambda a: {"object": "list", "data": [*map(show_key, a.admin.list_keys(a.actor, a.tenant))]}),
        route(Action.KEY_WRITE_OWN,
              "POST", f"{tenant}{key}/rotate", "Give a key a new secret", _rotate_key, bodies.RotateBody),
        route(Action.KEY_WRITE_OWN, "DELETE", f"{tenant}{key}", "Revoke a key for good",
              _deleted(lambda a: a.admin.revoke_key(a.actor, a.tenant, a.values["key"]))),
        route(Action.ORGANISATION_LIMITS_WRITE,
              "PUT", f"{tenant}/limits", "Set the limits of a tenant", _set_limits, bodies.LimitsBody),
        route(Action.KEY_LIMITS_WRITE,
              "PUT", f"{tenant}{key}/limits", "Set the limits of a key", _set_limits, bodies.LimitsBody),
        route(Action.LIMITS_READ,
              "GET", f"{tenant}/limits", "The limits of a tenant and its keys", _list_limits),
        route(Action.PRICE_WRITE,
              "PUT", "/admin/prices/{model}", "Set the prices of a model", _set_price, bodies.PriceBody),
        route(Action.PRICE_WRITE,
              "DELETE", "/admin/prices/{model}", "Remove a price: the model's tokens then cost nothing",
              _deleted(lambda a: a.admin.delete_price(a.actor, a.values["model"]))),
        route(Action.PRICE_READ,
              "GET", "/admin/prices", "The prices of tokens", lambda a: listed(a.admin.list_prices(a.actor))),
        route(Action.USAGE_READ,
              "GET", f"{tenant}/usage", "Usage and cost of a tenant", lambda a: _usage(a, a.tenant),
              bodies.UsageQuery),
        route(Action.USAGE_READ_ALL,
              "GET", "/admin/usage", "Usage and cost of all tenants", lambda a: _usage(a, None),
              bodies.UsageQuery),
        route(Action.AUDIT_READ, "GET", "/admin/audit", "The audit log: what was done, and what was refused",
              lambda a: listed(a.admin.audit_log(a.actor, a.given.tenant, a.given.limit)), bodies.AuditQuery),
        route(Action.USAGE_READ, "GET", "/v1/usage", "Your own usage and cost", lambda a: _usage(a, a.tenant),
              bodies.UsageQuery),
    ]  # fmt: skip
