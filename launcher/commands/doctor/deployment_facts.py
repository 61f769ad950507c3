"""Asks a router that runs, and its Tritons, for what is to be judged."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

import httpx

from launcher.commands.doctor.deployment import DeploymentFacts, ProbeResult
from launcher.commands.top.metrics_pages import (
    PageUnreadable,
    RouterPage,
    http_client,
    is_local,
    local_tritons,
    triton_metrics,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_ANSWER_TIMEOUT_S = 30.0
_TINY: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("/v1/completions", {"prompt": "1", "max_tokens": 1}),
    ("/v1/embeddings", {"input": "1"}),
    ("/v1/score", {"text_1": "1", "text_2": "1"}),
)
_OTHER_KIND = (400, 404)


def ask_deployment(url: str, key: str | None) -> DeploymentFacts:
    try:
        with http_client(url, key) as http:
            http.get("/health/live").raise_for_status()
            ready = http.get("/health/ready")
            models = _json(ready).get("models") or _readiness(http)
            answers = tuple(_ask_model(http, model) for model in _models(http))
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return DeploymentFacts(url, is_live=False, why_not_live=str(error) or type(error).__name__)
    facts = DeploymentFacts(
        url,
        is_live=True,
        is_ready=ready.status_code == 200,
        models=models,
        answers=answers,
        tritons=_tritons() if is_local(url) else {},
    )
    return _with_metrics(facts, key)


def _with_metrics(facts: DeploymentFacts, key: str | None) -> DeploymentFacts:
    from dataclasses import replace

    try:
        with closing(RouterPage(facts.url, key)) as look:
            return replace(facts, metrics=look.metrics())
    except PageUnreadable as error:
        return replace(facts, why_no_metrics=str(error))


def _models(http: httpx.Client) -> list[str]:
    """Those that this key may use; none where it may not even ask."""
    return [model["id"] for model in _json(http.get("/v1/models")).get("data", [])]


def _readiness(http: httpx.Client) -> dict[str, bool]:
    """By model, of those that this key may use: a router with keys tells it to nobody else."""
    found: dict[str, bool] = {}
    for each in _list(http.post("/v2/repository/index")):
        is_ready = each.get("state") == "READY"
        found[each["name"]] = found.get(each["name"], False) or is_ready
    return found


def _ask_model(http: httpx.Client, model: str) -> ProbeResult:
    """The least that can be asked; it counts for the tenant of the key like any other request."""
    for path, body in _TINY:
        began_s = time.monotonic()
        try:
            answer = http.post(path, json={"model": model, **body}, timeout=_ANSWER_TIMEOUT_S)
        except httpx.HTTPError as error:
            return ProbeResult(model, 0, message=str(error) or type(error).__name__)
        if answer.status_code not in _OTHER_KIND:
            break
    message = str(_json(answer).get("error", {}).get("message", ""))
    return ProbeResult(model, answer.status_code, time.monotonic() - began_s, message)


def _tritons() -> dict[str, str]:
    found = {}
    for url in local_tritons():
        try:
            triton_metrics(url)
            found[url] = ""
        except PageUnreadable as error:
            found[url] = str(error)
    return found


def _json(answer: httpx.Response) -> dict[str, Any]:
    value = _decoded(answer)
    return value if isinstance(value, dict) else {}


def _list(answer: httpx.Response) -> list[dict[str, Any]]:
    """Nothing where the router answers with an error."""
    value = _decoded(answer)
    return value if isinstance(value, list) else []


def _decoded(answer: httpx.Response) -> Any:
    try:
        return answer.json()
    except ValueError:
        return None
