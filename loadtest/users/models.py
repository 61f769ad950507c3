"""Which models a router serves, and for what: asked once, before the first user asks anything."""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from typing import Any

_TIMEOUT_S = 10.0


class TargetError(Exception):
    """The target cannot be used; the message says why."""


@dataclass(frozen=True)
class Target:
    """Names; empty where nothing of that kind is served."""

    text: str = ""
    embeddings: str = ""


def find_target(url: str, key: str = "", model: str = "", embeddings: str = "") -> Target:
    """The first language model and the first embedding model, unless they are named. Raises TargetError."""
    served = [str(row["id"]) for row in _get(url, "/v1/models", key)["data"]]
    for named in (model, embeddings):
        # A release may be named too, which the list does not hold.
        if named and named.partition("@")[0] not in served:
            raise TargetError(f"{url} has no model {named!r}; it has: {', '.join(served) or 'none'}")
    for name in served:
        if model and embeddings:
            break
        inputs = _inputs(url, name, key)
        if "text_input" in inputs:
            model = model or name
        elif "TEXT" in inputs:
            embeddings = embeddings or name
    if not model and not embeddings:
        raise TargetError(f"{url} serves neither a language model nor one for embeddings")
    return Target(model, embeddings)


def _inputs(url: str, name: str, key: str) -> set[str]:
    try:
        described = _get(url, f"/v2/models/{urllib.parse.quote(name)}", key)
    except TargetError:  # a key may not be for it
        return set()
    return {row["name"] for row in described.get("inputs", ())}


def _get(url: str, path: str, key: str) -> Any:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    # A proxy meant for the world outside is not asked: load goes where it is sent.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(url.rstrip("/") + path, headers=headers)
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        needs_key = " (it needs a key: --tenants, or INFLIGHT_API_KEY)" if error.code == 401 else ""
        raise TargetError(f"{url}{path} answers with status {error.code}{needs_key}") from None
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        asked = "is it a router's address, and does it run?"
        raise TargetError(f"{url} cannot be reached: {why}; {asked}") from None
