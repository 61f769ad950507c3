"""A collector, and a tracer that sends to it almost at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from router.telemetry.tracing.otlp import OtlpOutlet
from router.telemetry.tracing.tracer import Tracer
from tests.fakes.collector import SERVER, Collector, Seen, collecting
from tests.waiting import until

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRACEPARENT = f"00-{TRACE}-{SPAN}-01"


@dataclass
class Tracing:
    tracer: Tracer
    outlet: OtlpOutlet
    collector: Collector

    async def requests(self, count: int = 1) -> list[Seen]:
        """The spans of requests, once there are so many and all below them came too."""

        def are_all() -> bool:
            counts = self.outlet.counts
            return len(self._servers()) >= count and self.outlet.queued == 0 and counts.sent == counts.taken

        await until(are_all, lambda: f"the spans did not come: {self.collector.spans}")
        return self._servers()

    def _servers(self) -> list[Seen]:
        return [span for span in self.collector.spans if span.kind == SERVER]

    @property
    def spans(self) -> list[Seen]:
        return self.collector.spans


@contextmanager
def tracing(percent: float = 100.0) -> Iterator[Tracing]:
    with collecting() as collector:
        outlet = OtlpOutlet(collector.url, {"x-key": "secret"}, "1.2.3", delay_s=0.02)
        yield Tracing(Tracer(outlet, percent), outlet, collector)
        outlet.close(5.0)
