"""Requests that may be answered with what the same request was answered before, for tenants that allow it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from router.answer_cache.cache_terms import CacheTerms, read_terms
from router.answer_cache.kept_answers import KeptAnswer, KeptAnswers
from router.answer_cache.recording_exchange import RecordingExchange
from router.core.bounded_json import TooMuchJson, decode_bounded
from router.core.record import Outcome
from router.request.decoding import UNREADABLE
from router.request.errors import HttpError
from router.request.identity import check_model_allowed
from router.request.routes import JSON

if TYPE_CHECKING:
    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.aside import Aside
    from router.request.permit import Permits
    from router.request.routes import Route
    from router.routing.models import Published

HEADER = "cache-control"
_decoder = msgspec.json.Decoder()
_LONGEST_BODY_BYTES = 1 << 20
_LARGEST_ANSWER_BYTES = 1 << 20
# What is stored for its caller, and what is read from there or from other hosts, is not the same twice.
_STATEFUL_FIELDS = ("store", "background")
_FILES = ("file_id", "file_url")
_ADDRESSES = ("url", "image_url")
_STATEFUL_PATHS = ("/v1/responses",)


class CacheCounts(NamedTuple):
    """Of one model."""

    hits: int = 0
    misses: int = 0
    saved_tokens: int = 0


class CachedRequests:
    """In front of the endpoints that ask a model. A hit costs `percent` of what the answer would.

    An answer is one release's: it is told while that release alone answers for its model. It is told to the
    user whose request it answered, and where it `is_shared` to all users of that tenant.
    """

    def __init__(
        self,
        kept: KeptAnswers,
        permits: Permits,
        published: Published,
        percent: int,
        aside: Aside,
        is_shared: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.kept = kept
        self.counts: dict[str, CacheCounts] = {}
        self._permits = permits
        self._published = published
        self._percent = percent
        self._aside = aside
        self._is_shared = is_shared
        self._clock = clock

    def terms_of(self, exchange: Exchange, record: Record, route: Route) -> CacheTerms | None:
        """None for a request that has nothing to do with a cache."""
        request = exchange.request
        allowed_s = record.caller.organisation_limits.answers_cached_s
        if not (allowed_s and route.asks_model) or route.path.startswith(_STATEFUL_PATHS):
            return None
        terms = read_terms(request.headers.get(HEADER, ""), allowed_s)
        return None if len(request.body) > _LONGEST_BODY_BYTES else terms

    async def answer(self, exchange: Exchange, record: Record, route: Route, terms: CacheTerms) -> None:
        body, when_large = exchange.request.body, self._aside.when_large
        # Tensors name no files and no addresses.
        if route.takes == JSON and await when_large(len(body), record.tenant, _is_stateful, body):
            await route.endpoint(exchange, record)
            return
        name = await when_large(len(body), record.tenant, self._name_of, exchange, record)
        now_s = self._clock()
        kept = self.kept.get(name) if terms.max_age_s else None
        if kept is not None and now_s - kept.made_s < terms.max_age_s and self._stands(kept):
            await self._tell(exchange, record, kept, now_s)
            return
        if terms.only_kept:
            raise HttpError(
                504, "this answer is not in the cache, and only-if-cached allows no model to compute it"
            )
        recording = RecordingExchange(exchange, _LARGEST_ANSWER_BYTES)
        exchange.extra_headers = [*exchange.extra_headers, ("x-inflight-cache", "miss")]
        await route.endpoint(recording, record)
        self._keep(name, recording, record)

    async def _tell(self, exchange: Exchange, record: Record, kept: KeptAnswer, now_s: float) -> None:
        check_model_allowed(record.caller, kept.model)
        record.model, record.model_version = kept.model, kept.release
        await self._permits.charge(record, kept.prompt_tokens, kept.completion_tokens, self._percent)
        own = record.headers()
        names = {header for header, _ in own}
        headers = [each for each in kept.headers if each[0] not in names]
        headers += [*own, ("age", str(int(now_s - kept.made_s))), ("x-inflight-cache", "hit")]
        if kept.is_stream:
            exchange.start(kept.status, headers)
            exchange.end(kept.body)
        else:
            exchange.respond(kept.status, kept.body, headers)
        self._count(kept.model, hits=1, saved_tokens=kept.prompt_tokens + kept.completion_tokens)

    def _keep(self, name: bytes, recording: RecordingExchange, record: Record) -> None:
        self._count(record.model, misses=1)
        body = recording.copy
        is_whole = record.outcome == Outcome.FINISHED and recording.status == 200 and not record.error
        if body is None or not is_whole or record.finish_reason == "content_filter":
            return
        kept = KeptAnswer(
            tenant=record.tenant,
            status=recording.status,
            headers=recording.answer_headers,
            body=body,
            is_stream=recording.is_stream,
            model=record.model,
            release=record.model_version,
            prompt_tokens=record.prompt_tokens,
            completion_tokens=record.completion_tokens,
            made_s=self._clock(),
        )
        if self._stands(kept):
            self.kept.put(name, kept)

    def _name_of(self, exchange: Exchange, record: Record) -> bytes:
        """Another organisation, user, dialect or pinned release never has the same."""
        request = exchange.request
        user = "" if self._is_shared else record.caller.user.id
        parts = (record.tenant, user, request.path, request.query, record.pinned_release)
        digest = hashlib.sha256(b"\0".join(part.encode("utf-8", "surrogateescape") for part in parts))
        digest.update(b"\0")
        digest.update(request.body)
        return digest.digest()

    def _stands(self, kept: KeptAnswer) -> bool:
        lineup = self._published.current.lineups.get(kept.model)
        return lineup is not None and [arm.release for arm in lineup.divided.arms] == [kept.release]

    def _count(self, model: str, hits: int = 0, misses: int = 0, saved_tokens: int = 0) -> None:
        if model:
            past = self.counts.get(model, CacheCounts())
            added = CacheCounts(hits, misses, saved_tokens)
            self.counts[model] = CacheCounts(*map(sum, zip(past, added, strict=True)))


def _is_stateful(body: bytes) -> bool:
    """Return whether the same body may get another answer; so may one that cannot be read."""
    try:
        asked = decode_bounded(_decoder, body, has_numbers=True)
    except (*UNREADABLE, TooMuchJson):
        return True
    if not isinstance(asked, dict) or any(asked.get(name) is True for name in _STATEFUL_FIELDS):
        return True
    found: list[Any] = [asked]
    while found:
        value = found.pop()
        if isinstance(value, list):
            found += [each for each in value if isinstance(each, (dict, list))]
        else:
            if any(name in value for name in _FILES) or any(map(_is_address, map(value.get, _ADDRESSES))):
                return True
            found += [each for each in value.values() if isinstance(each, (dict, list))]
    return False


def _is_address(value: object) -> bool:
    return isinstance(value, str) and value[:8].lower().startswith(("http:", "https:"))
