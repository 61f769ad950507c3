"""What Triton has counted of a model, and what of that is new since the last look."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    Batches = Mapping[int, tuple[int, int]]

_NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums since a model was loaded; `batches` has, by the rows of a batch, how many there were and their ns.

    `took_ns` is the time of answered requests in Triton: `queue_ns` in its queue, `compute_ns` in the model.
    """

    requests: int = 0
    rows: int = 0
    executions: int = 0
    failures: int = 0
    took_ns: int = 0
    batches: Batches = field(default_factory=dict)
    queue_ns: int = 0
    compute_ns: int = 0

    def plus(self, other: Totals) -> Totals:
        return Totals(
            self.requests + other.requests,
            self.rows + other.rows,
            self.executions + other.executions,
            self.failures + other.failures,
            self.took_ns + other.took_ns,
            dict(_added([*self.batches.items(), *other.batches.items()])),
            self.queue_ns + other.queue_ns,
            self.compute_ns + other.compute_ns,
        )

    def since(self, before: Totals) -> Totals | None:
        """None where Triton counts from the beginning again, because the model was loaded anew."""
        news = Totals(
            self.requests - before.requests,
            self.rows - before.rows,
            self.executions - before.executions,
            self.failures - before.failures,
            self.took_ns - before.took_ns,
            _newer(self.batches, before.batches),
            self.queue_ns - before.queue_ns,
            self.compute_ns - before.compute_ns,
        )
        times_ns = (news.took_ns, news.queue_ns, news.compute_ns)
        counts = (news.requests, news.rows, news.executions, news.failures, *times_ns)
        is_anew = min(counts) < 0 or any(count < 0 or ns < 0 for count, ns in news.batches.values())
        return None if is_anew else news

    @property
    def busy_ms(self) -> float:
        return sum(ns for _, ns in self.batches.values()) / _NS_PER_MS

    @property
    def mean_ms(self) -> float:
        return self.took_ns / _NS_PER_MS / self.requests if self.requests else 0.0

    def mean_batches(self) -> Iterator[tuple[int, float, int]]:
        """Of each size: its rows, what such batches took in the mean, in ms, and how many there were."""
        for rows, (count, ns) in self.batches.items():
            if rows > 0 and count > 0:
                yield rows, ns / _NS_PER_MS / count, count


def totals_of(answer: Any) -> Totals:
    """Of Triton's ModelStatisticsResponse, all versions of the model together."""
    found = Totals()
    for model in answer.model_stats:
        stats = model.inference_stats
        batches = {
            int(each.batch_size): (
                int(each.compute_infer.count),
                int(each.compute_input.ns + each.compute_infer.ns + each.compute_output.ns),
            )
            for each in model.batch_stats
        }
        one = Totals(
            int(stats.success.count),
            int(model.inference_count),
            int(model.execution_count),
            int(stats.fail.count),
            int(stats.success.ns),
            batches,
            int(stats.queue.ns),
            int(stats.compute_input.ns + stats.compute_infer.ns + stats.compute_output.ns),
        )
        found = found.plus(one)
    return found


def _newer(now: Batches, before: Batches) -> Batches:
    gone = {rows: (-1, -1) for rows in before if rows not in now}
    return gone | {
        rows: (count - before.get(rows, (0, 0))[0], ns - before.get(rows, (0, 0))[1])
        for rows, (count, ns) in now.items()
    }


def _added(items: Iterable[tuple[int, tuple[int, int]]]) -> Iterator[tuple[int, tuple[int, int]]]:
    sums: dict[int, tuple[int, int]] = {}
    for rows, (count, ns) in items:
        had = sums.get(rows, (0, 0))
        sums[rows] = (had[0] + count, had[1] + ns)
    return iter(sums.items())
