"""Runs as a test wants them."""

from __future__ import annotations

import random

from loadtest.results import LoadRun, RequestResult, ServerSample, Slo

BEGAN_AT = "2026-11-15T20:00:00+00:00"
SLO = {"interactive": Slo(0.5, 0.05), "standard": Slo(2.0, None, 30.0)}


def answered(
    at_s: float = 0.0,
    first_s: float = 0.2,
    gap_s: float = 0.02,
    tokens: int = 11,
    tenant: str = "a",
    tier: str = "interactive",
) -> RequestResult:
    gaps_s = [gap_s] * (tokens - 1)
    return RequestResult(
        *("trace", at_s, tenant, tier, "tiny", "1", 200),
        first_token_s=first_s,
        ended_s=first_s + sum(gaps_s),
        prompt_tokens=5,
        completion_tokens=tokens,
        gaps_s=gaps_s,
        request_id=f"req-{at_s:g}",
        asked_tokens=tokens,
        pieces=tokens,
        longest_gap_s=gap_s,
    )


def refused(at_s: float = 0.0, attempt: int = 0) -> RequestResult:
    return RequestResult(
        "trace", at_s, "a", "interactive", status=503, ended_s=0.01, retry_after_s=1.0,
        error='{"error": {"message": "41 requests wait"}}', attempt=attempt, asked_tokens=4,
    )  # fmt: skip


def failed(at_s: float = 0.0, error: str = "ServerDisconnectedError: gone") -> RequestResult:
    return RequestResult("trace", at_s, "b", "standard", error=error, request_id="req-bad", asked_tokens=4)


def left(at_s: float = 0.0) -> RequestResult:
    return RequestResult("trace", at_s, "b", "standard", status=200, asked_tokens=4)


def samples(count: int = 10) -> list[ServerSample]:
    return [
        ServerSample(
            float(at_s),
            2.0,
            5.0,
            8.0,
            0.5,
            {"a": 10.0 * at_s},
            {"waiting": at_s / 8, "decode": 1.0 * at_s},
            at_s,
        )
        for at_s in range(count)
    ]


def busy_run(seed: int = 1, requests: int = 200, slower: float = 1.0, duration_s: float = 20.0) -> LoadRun:
    """Everything that there is to show."""
    chance = random.Random(seed)
    results = []
    for number in range(requests):
        at_s = duration_s * number / requests
        if number % 20 == 7:
            results.append(refused(at_s))
            continue
        each = answered(
            at_s,
            slower * 0.2 * chance.lognormvariate(0, 0.4),
            slower * 0.02 * chance.lognormvariate(0, 0.1),
            chance.randrange(2, 30),
            chance.choice("abc"),
            chance.choice(["interactive", "standard"]),
        )
        each.gaps_s = [gap_s * chance.lognormvariate(0, 0.3) for gap_s in each.gaps_s]
        results.append(each)
    about = {"processor": "<script>a & b</script>", "command": "inflight loadtest replay --trace x.csv"}
    return LoadRun(
        "busy",
        BEGAN_AT,
        duration_s + 2,
        [*results, failed(3.0), left(4.0)],
        samples(),
        SLO,
        about,
        3,
        requests + 2,
    )
