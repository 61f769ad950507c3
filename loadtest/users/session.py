"""What all users of one process share: the target, the tenants, the trace, the record and the statistics."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from loadtest.results import RequestResult
from loadtest.tenants import Tenant, TenantMix, tenants_of
from loadtest.traces import Trace, read_trace
from loadtest.users.models import Target, find_target
from loadtest.users.options import grpc_address
from loadtest.users.prompts import PromptWriter
from loadtest.users.recorder import Recorder

logger = logging.getLogger(__name__)


@dataclass
class Session:
    """One run, from Locust's test_start to its test_stop. `environment` is Locust's."""

    environment: Any
    url: str
    target: Target
    mix: TenantMix
    trace: Trace | None
    recorder: Recorder | None
    began_s: float = field(default_factory=time.perf_counter)
    users: int = 0

    @property
    def options(self) -> Any:
        return self.environment.parsed_options

    @property
    def grpc_address(self) -> str:
        return grpc_address(self.options.grpc_address, self.url)

    def writer(self, tenant: Tenant) -> PromptWriter:
        """Of a new user: no two users' texts are alike."""
        self.users += 1
        options = self.options
        return PromptWriter(
            f"{options.seed}/{self.users}",
            options.prompt_tokens,
            options.answer_tokens,
            options.longest_tokens,
            self.trace,
            options.shared_prefix_tokens,
            f"{options.seed}/{tenant.name}",
        )

    def note(self, result: RequestResult) -> None:
        """Whatever became of it."""
        if self.recorder is not None:
            self.recorder.note(result)
        if not result.has_left:
            Statistics(self.environment, self.options.by_tenant).count(result)


def begin(environment: Any) -> Session:
    """Raises TargetError, TenantsError, TraceError or ValueError, each with a sentence for the user."""
    options = environment.parsed_options
    url = (environment.host or "http://127.0.0.1:8080").rstrip("/")
    tenants = tenants_of(options.tenants)
    target = find_target(url, tenants[0].key, options.model, options.embedding_model)
    trace = read_trace(Path(options.trace)) if options.trace else None
    began_s = time.perf_counter()
    recorder = Recorder(Path(options.results), began_s) if options.results else None
    return Session(environment, url, target, TenantMix(tenants), trace, recorder, began_s)


class Statistics:
    """Locust's own statistics, fed with what it has no word for.

    An answer is a request as Locust knows it. Its first token, the times between its tokens and refusals are
    rows beside it, which are kept out of Locust's total: they would make its percentiles those of nothing.
    Between tokens each token counts once, so that the row's requests a second are tokens a second.
    """

    def __init__(self, environment: Any, by_tenant: bool = False) -> None:
        self._environment = environment
        self._by_tenant = by_tenant

    def count(self, result: RequestResult) -> None:
        name = f"{result.kind} ({result.tenant})" if self._by_tenant else result.kind
        ended_ms = (result.ended_s or 0.0) * 1000
        if result.is_refused:
            self._row(f"{name}: refused", result.kind, ended_ms, 0)
            return
        self._environment.events.request.fire(
            request_type=result.kind,
            name=name,
            response_time=ended_ms,
            response_length=result.completion_tokens,
            exception=Exception(reason(result)) if result.has_failed else None,
            context={"tenant": result.tenant},
        )
        if result.has_failed:
            return
        if result.first_token_s is not None:
            self._row(f"{name}: first token", result.kind, result.first_token_s * 1000, 1)
        for gap_s in each_token(result):
            self._row(f"{name}: between tokens", result.kind, gap_s * 1000, 1)

    def _row(self, name: str, kind: str, time_ms: float, tokens: int) -> None:
        self._environment.stats.get(name, kind).log(time_ms, tokens)


def reason(result: RequestResult) -> str:
    """Why it failed, in words that are the same for the same failure."""
    return result.error or "the answer is shorter than planned"


def each_token(result: RequestResult) -> list[float]:
    """The gap before each token but the first: those of a piece with several tokens share theirs."""
    gaps, tokens = result.gaps_s, result.completion_tokens - 1
    if not gaps or tokens <= len(gaps):
        return gaps
    return [gaps[number * len(gaps) // tokens] for number in range(tokens)]
