"""Requests that name a cascade: the small model is asked first, and the large one where that will not do."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from copy import copy
from dataclasses import fields, replace
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from python_backend.wire.errors import InflightError
from router.cascade.checks import Reason, helps_to_ask_large
from router.cascade.trial import HoldingExchange, Inadequate, Trial
from router.core.bounded_json import LIGHT_BYTES, MOST_NUMBERS, TooMuchJson, weigh
from router.core.record import Record, new_request_id
from router.http.inner_exchange import InnerExchange
from router.request.decoding import UNREADABLE, invalid
from router.request.identity import check_model_allowed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from router.cascade.cascade import Cascade
    from router.http.exchange import Exchange
    from router.request.aside import Aside
    from router.request.routes import Endpoint, Route

log = logging.getLogger(__name__)

_CHAT = "/v1/chat/completions"
# Where a model is asked for text, and named by the field `model` of a body in JSON.
_PATHS = frozenset({_CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/api/chat", "/api/generate"})
_OLLAMA, _ANY_TAG = "/api/", ":latest"  # which its clients put behind a name
_YES, _NO = "yes", "no"
_FIELDS = tuple(field.name for field in fields(Record))


class _Asked(msgspec.Struct, frozen=True):
    model: str = ""
    background: bool | None = None
    tools: msgspec.Raw = msgspec.Raw(b"[]")


class _Message(msgspec.Struct, frozen=True):
    content: str | None = None


class _Choice(msgspec.Struct, frozen=True):
    message: _Message


class _Chat(msgspec.Struct, frozen=True):
    choices: list[_Choice]


_asked = msgspec.json.Decoder(_Asked)
_raw = msgspec.json.Decoder(dict[str, msgspec.Raw])
_judged = msgspec.json.Decoder(_Chat)


class CascadedRequests:
    """In front of the endpoints that ask a model for text; none of them knows of it."""

    def __init__(
        self, cascades: Iterable[Cascade], aside: Aside, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._cascades = {each.name: each for each in cascades}
        self._aside = aside
        self._clock = clock
        self._chat: Endpoint | None = None
        # By cascade, the model that answered and why it was not the small one.
        self.answered: Counter[tuple[str, str, str]] = Counter()
        self.rejected_tokens: Counter[str] = Counter()
        self.held_s: defaultdict[str, float] = defaultdict(float)

    def wrap(self, routes: Sequence[Route]) -> list[Route]:
        if not self._cascades:
            return list(routes)
        self._chat = next((each.endpoint for each in routes if each.path == _CHAT), None)
        return [
            replace(each, endpoint=partial(self._answer, each.endpoint))
            if each.path in _PATHS and each.asks_model
            else each
            for each in routes
        ]

    async def _answer(self, endpoint: Endpoint, exchange: Exchange, record: Record) -> None:
        body = exchange.request.body
        asked = await self._aside.when_large(len(body), record.tenant, _read, body)
        cascade = None if asked is None else self._cascades.get(_name_in(asked, exchange.request.path))
        if asked is None or cascade is None:
            await endpoint(exchange, record)
            return
        if record.pinned_release and not record.is_release_given:
            raise invalid(
                f"'{cascade.name}' is a cascade and has no releases; name one of its models", "model"
            )
        for model in (cascade.small, cascade.large):
            check_model_allowed(record.caller, model)
        reason: Reason | None = Reason.UNHELD
        if not (asked.background or record.is_release_given):
            reason = await self._try(endpoint, exchange, record, cascade, asked)
        if reason is not None:
            record.cascade = f"{cascade.name}; model={cascade.large}; reason={reason.value}"
            self.answered[cascade.name, cascade.large, reason.value] += 1
            # Who does not know of cascades finds the large model behind the name.
            await endpoint(exchange, record)

    async def _try(
        self, endpoint: Endpoint, exchange: Exchange, record: Record, cascade: Cascade, asked: _Asked
    ) -> Reason | None:
        """None where the small model's answer was told; else why not, and the record is as it was before."""
        before, began_s = copy(record), self._clock()
        size = len(exchange.request.body)
        body = await self._aside.when_large(
            size, record.tenant, _renamed, exchange.request.body, cascade.small
        )
        held = HoldingExchange(exchange, msgspec.structs.replace(exchange.request, body=body))
        offers_tools = bytes(asked.tools) not in (b"[]", b"null")
        record.journal = Trial(cascade, partial(self._agrees, exchange, record, cascade), offers_tools)
        record.cascade = f"{cascade.name}; model={cascade.small}"
        try:
            await endpoint(held, record)
        except Inadequate as inadequate:
            reason = inadequate.reason
        except InflightError as error:
            if not helps_to_ask_large(error.kind):
                raise
            reason = Reason.FAILED
        else:
            held.release()
            self.answered[cascade.name, cascade.small, ""] += 1
            return None
        finally:
            self.held_s[cascade.name] += self._clock() - began_s
            record.journal = before.journal
        self.rejected_tokens[cascade.name] += record.prompt_tokens + record.completion_tokens
        # Usage is recorded by this id, of each call its own.
        request_id = f"{before.request_id}.large"
        log.info("%s is sent again as %s: %s", record.request_id, request_id, reason.value)
        for name in _FIELDS:
            setattr(record, name, getattr(before, name))
        record.request_id = request_id
        return reason

    async def _agrees(self, exchange: Exchange, record: Record, cascade: Cascade, question: str) -> bool:
        """A judge that cannot be asked has not agreed."""
        assert self._chat is not None
        body = {
            "model": cascade.judge,
            "messages": [{"role": "user", "content": question}],
            "guided_choice": [_YES, _NO],
            "temperature": 0,
        }
        inner = InnerExchange(_CHAT, msgspec.json.encode(body))
        exchange.on_disconnect(inner.client_left)
        asking = Record(_CHAT, new_request_id("judge"), record.caller, tier=record.tier, is_tier_given=True)
        asking.is_counted = True  # with the request that it judges
        try:
            await self._chat(inner, asking)
        except InflightError as error:
            if not helps_to_ask_large(error.kind):
                raise
            log.warning("the judge of %s failed: %s", cascade.name, error.message)
            return False
        return _judged.decode(inner.body).choices[0].message.content == _YES


def _name_in(asked: _Asked, path: str) -> str:
    return asked.model.removesuffix(_ANY_TAG) if path.startswith(_OLLAMA) else asked.model


def _read(body: bytes) -> _Asked | None:
    """None for what is no such request: its endpoint will say why."""
    try:
        if len(body) > LIGHT_BYTES and weigh(body).commas > MOST_NUMBERS:
            return None
        return _asked.decode(body)
    except (*UNREADABLE, TooMuchJson):
        return None


def _renamed(body: bytes, model: str) -> bytes:
    return msgspec.json.encode({**_raw.decode(body), "model": model})
