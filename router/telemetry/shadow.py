"""What comes of shadowed requests and of recorded prompts, as metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.telemetry.values import Counter, Histogram

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_RELEASE = ("model", "release")
_LIKENESS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.999)
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class ShadowMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        self._answers = Counter(
            "inflight_shadow_answers",
            "Shadowed requests: equal, different, failed, dropped under load, alone (no original).",
            ("outcome", *_RELEASE),
            registry=registry,
        )
        self._likeness = Histogram(
            "inflight_shadow_likeness_ratio",
            "Common prefix of both texts as a fraction of the longer one, or the cosine of vectors.",
            _RELEASE,
            buckets=_LIKENESS,
            registry=registry,
        )
        self._seconds = Histogram(
            "inflight_shadow_request_seconds",
            "Time from the start of a shadow's answer to its end.",
            _RELEASE,
            buckets=_SECONDS,
            registry=registry,
        )

        self._replays = Counter(
            "inflight_replayed_prompts",
            "Recorded prompts sent to both releases: compared, failed by the canary, or skipped "
            "because one of them cannot process it.",
            ("outcome", *_RELEASE),
            registry=registry,
        )

    def replayed(self, outcome: str, model: str, release: str) -> None:
        self._replays.labels(outcome, model, release).inc()

    def ended(self, outcome: str, model: str, release: str) -> None:
        self._answers.labels(outcome, model, release).inc()

    def compared(self, model: str, release: str, likeness: float, took_s: float) -> None:
        self._likeness.labels(model, release).observe(likeness)
        self._seconds.labels(model, release).observe(took_s)
