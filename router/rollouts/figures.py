"""What Prometheus is told of releases and rollouts, looked up when it asks."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.core import Metric

    from router.registry import Registry

_RELEASE = ("model", "release")


class ReleaseFigures(Collector):
    """Of no releases until there is a registry of them."""

    def __init__(self) -> None:
        self.registry: Registry | None = None
        self._rollbacks: Counter[str] = Counter()

    def rolled_back(self, model: str) -> None:
        self._rollbacks[model] += 1

    def collect(self) -> Iterator[Metric]:
        shares = GaugeMetricFamily(
            "inflight_release_share", "The part of a model's requests that it is to get.", labels=_RELEASE
        )
        steps = GaugeMetricFamily(
            "inflight_rollout_step", "The step that a canary is in, the first being 1.", labels=_RELEASE
        )
        rollbacks = CounterMetricFamily(
            "inflight_rollbacks", "Rollouts that were taken back, but for those by hand.", labels=("model",)
        )
        for model, lineup in {} if self.registry is None else self.registry.lineups.items():
            split = lineup.split
            for version in sorted(lineup.releases.keys() | dict(split.arms).keys()):
                shares.add_metric((model, str(version)), split.weight_of(version))
            if split.rollout_id is not None:
                steps.add_metric((model, str(split.arms[0][0])), split.step + 1)
            rollbacks.add_metric((model,), self._rollbacks[model])
        yield from (shares, steps, rollbacks)
