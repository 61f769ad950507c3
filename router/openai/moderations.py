"""POST /v1/moderations: texts judged by the operator's own rules, in OpenAI's shape."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.actions import Action
from router.core.fair_pool import unless_left
from router.request.decoding import decode, invalid
from router.request.errors import respond_json
from router.request.routes import Route

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.safety.guard import Safety

MODEL = "inflight-safety-rules"
MOST_INPUTS = 128
_CATEGORIES = (
    "harassment",
    "harassment/threatening",
    "hate",
    "hate/threatening",
    "illicit",
    "illicit/violent",
    "self-harm",
    "self-harm/instructions",
    "self-harm/intent",
    "sexual",
    "sexual/minors",
    "violence",
    "violence/graphic",
)
# A rule's name has no slashes.
_BY_RULE = {name.replace("/", mark): name for name in _CATEGORIES for mark in (" ", ".", "_")}


class InputPart(msgspec.Struct, frozen=True):
    type: Literal["text", "image_url"]
    text: str | None = None


class ModerationBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`model` has no effect: the rules judge. Parts are one input together."""

    input: str | Annotated[list[str | InputPart], Meta(min_length=1, max_length=MOST_INPUTS)]
    model: str | None = None


_decoder = msgspec.json.Decoder(ModerationBody)


class Moderations:
    def __init__(self, safety: Safety | None) -> None:
        self._safety = safety

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        if self._safety is None:
            message = "no rules are configured: set safety_rules or safety_check in [router]"
            raise InflightError(ErrorKind.UNSUPPORTED, message)
        # A long text with many patterns takes its time: in a thread, in turns by tenant.
        judging = self._safety.pool.run(record.tenant, _judged, self._safety, exchange.request.body)
        found = await unless_left(judging, exchange.on_disconnect)
        results = [_result(self._safety.rules, rules) for rules in found]
        answer = {"id": record.request_id, "model": MODEL, "results": results}
        respond_json(exchange, record, answer)


def _texts(body: ModerationBody) -> list[str]:
    if isinstance(body.input, str):
        return [body.input]
    texts = [each for each in body.input if isinstance(each, str)]
    if len(texts) == len(body.input):
        return texts
    if texts:
        raise invalid("input: expected texts or parts, not both", "input")
    parts = []
    for index, part in enumerate(body.input):
        if isinstance(part, str) or part.type != "text":
            message = f"input[{index}]: images are not supported; send text"
            raise InflightError(ErrorKind.UNSUPPORTED, message, f"input[{index}].type")
        if part.text is None:
            raise invalid(f"input[{index}].text: expected a string", f"input[{index}].text")
        parts.append(part.text)
    return ["\n".join(parts)]


def _judged(safety: Safety, body: bytes) -> list[set[str]]:
    return [safety.broken_rules(text) for text in _texts(decode(_decoder, body))]


def _result(known: Sequence[str], broken: set[str]) -> dict[str, Any]:
    """A rule is a category: one of OpenAI's where it is named so, and one of its own otherwise."""
    names = [*_CATEGORIES, *(category_of(rule) for rule in (*known, *sorted(broken)))]
    found = {category_of(rule) for rule in broken}
    categories = {name: name in found for name in names}
    return {
        "flagged": bool(broken),
        "categories": categories,
        "category_scores": {name: float(value) for name, value in categories.items()},
        "category_applied_input_types": {name: ["text"] for name in categories},
    }


def category_of(rule: str) -> str:
    return _BY_RULE.get(rule.lower(), rule)


def routes(safety: Safety | None) -> list[Route]:
    return [
        Route("POST", "/v1/moderations", Moderations(safety), "Check texts against the operator's rules",
              ModerationBody, "Moderation", request_id_prefix="modr", action=Action.INFERENCE_RUN)
    ]  # fmt: skip
