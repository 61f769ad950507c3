"""What a server says of the models behind it, before it is asked for anything."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Mapping
from urllib.error import HTTPError

_TIMEOUT_S = 10.0


class ServerError(ValueError):
    """The server cannot be used as it was told; the message says why."""


def ask_models(url: str, key: str = "") -> dict[str, int | None]:
    """Its models, and the context of each that generates text, in tokens. Raises ServerError."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        request = urllib.request.Request(f"{url.rstrip('/')}/v1/models", headers=headers)
        with opener.open(request, timeout=_TIMEOUT_S) as response:
            told = json.load(response)
        return {str(each["id"]): each.get("max_model_len") for each in told["data"]}
    except HTTPError as error:
        with error:
            needs_key = " (it needs a key: --tenants, or INFLIGHT_API_KEY)" if error.code == 401 else ""
            said = f"{url} answers {error.code} to GET /v1/models: {error.reason}"
            raise ServerError(said + needs_key) from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        why = getattr(error, "reason", error)
        asked = "is it a router's address, and does it run?"
        raise ServerError(f"{url} does not list its models: {why}; {asked}") from None


def choose(
    models: Mapping[str, int | None], model: str | None, context_tokens: int | None
) -> tuple[str, int]:
    """The model to ask, and what fits it. Raises ServerError."""
    names = ", ".join(models) or "none"
    if model is None:
        texts = [name for name, context in models.items() if context is not None]
        model = next(iter(texts or models), None)
        if model is None:
            raise ServerError("no model is served")
    elif model.partition("@")[0] not in models:
        raise ServerError(f"there is no model {model!r}; there are: {names}")
    context = context_tokens or models.get(model.partition("@")[0])
    if context is None:
        raise ServerError(f"the server does not report the context length of {model}; set --context-tokens")
    return model, context
