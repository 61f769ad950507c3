"""The server's own figures beside the client's: /metrics of the router and of Triton, once a second."""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from loadtest.results import ServerSample

_TIMEOUT_S = 2.0
_LINE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)$")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of a page of metrics."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass
class Page:
    """One scrape, or several put together."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)

    @classmethod
    def of(cls, text: str) -> Page:
        page = cls()
        for line in text.splitlines():
            if found := _LINE.match(line):
                labels = dict(_LABEL.findall(found[2] or ""))
                page.samples.setdefault(found[1], []).append(Sample(found[1], labels, float(found[3])))
        return page

    def find(self, name: str, **labels: str) -> Iterator[Sample]:
        for sample in self.samples.get(name, ()):
            if all(sample.labels.get(label) == value for label, value in labels.items()):
                yield sample

    def total(self, name: str, **labels: str) -> float | None:
        """None where there is no such line: that is not the same as 0."""
        values = [sample.value for sample in self.find(name, **labels)]
        return sum(values) if values else None

    def by(self, label: str, *names: str) -> dict[str, float]:
        totals: dict[str, float] = {}
        for name in names:
            for sample in self.find(name):
                key = sample.labels.get(label, "")
                totals[key] = totals.get(key, 0.0) + sample.value
        return totals


def server_sample(
    at_s: float, router: Page, triton: Page, tenant_names: Mapping[str, str] | None = None
) -> ServerSample:
    """What both pages say; tenants by their names where those are known, else by id.

    Without Triton's the batch is what the router has sent on and not got back.
    """
    waiting = router.total("inflight_waiting_requests")
    running = triton.total("nv_trt_llm_request_metrics", request_type="active")
    if running is None and (accepted := router.total("inflight_requests_in_flight")) is not None:
        running = max(0.0, accepted - (waiting or 0.0))
    tokens = router.by("tenant", "inflight_prompt_tokens_total", "inflight_completion_tokens_total")
    names = tenant_names or {}
    return ServerSample(
        at_s=at_s,
        waiting=waiting,
        running=running,
        batch_limit=triton.total("inflight_engine_batch_limit_sequences")
        or triton.total("nv_trt_llm_request_metrics", request_type="max"),
        kv_used_ratio=_kv_used_ratio(router, triton),
        tokens_by_tenant={names.get(tenant, tenant): count for tenant, count in tokens.items()},
        stage_seconds=router.by("stage", "inflight_stage_seconds_sum"),
        stage_requests=max(router.by("stage", "inflight_stage_seconds_count").values(), default=0.0),
    )


def _kv_used_ratio(router: Page, triton: Page) -> float | None:
    family = "nv_trt_llm_kv_cache_block_metrics"
    used = triton.total(family, kv_cache_block_type="used")
    most = triton.total(family, kv_cache_block_type="max")
    if used is None or not most:
        used = router.total("inflight_kv_reserved_tokens")
        most = router.total("inflight_kv_budget_tokens")
    return used / most if used is not None and most else None


def scrape(url: str, key: str = "") -> Page:
    """An empty page where nobody answers: a load test goes on without."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as response:
            return Page.of(response.read().decode())
    except (OSError, ValueError):
        return Page()


class MetricsSampler:
    """Samples in a thread of its own until its `with` block is left.

    Moments count from `began_s()` on the clock of `time.perf_counter`; nothing is noted while that is None.
    """

    def __init__(
        self,
        router_url: str,
        triton_metrics_urls: tuple[str, ...] = (),
        key: str = "",
        began_s: Callable[[], float | None] | None = None,
        tenant_names: Mapping[str, str] | None = None,
        interval_s: float = 1.0,
    ) -> None:
        self._router_metrics_url = f"{router_url.rstrip('/')}/metrics"
        self._triton_urls = triton_metrics_urls
        self._key = key
        self._tenant_names = tenant_names or {}
        entered_s = time.perf_counter()
        self._began_s = began_s or (lambda: entered_s)
        self._interval_s = interval_s
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[ServerSample] = []

    def __enter__(self) -> MetricsSampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(timeout=4 * _TIMEOUT_S)

    def _run(self) -> None:
        while not self._done.wait(self._interval_s):
            if (began_s := self._began_s()) is not None:
                self._take(began_s)

    def _take(self, began_s: float) -> None:
        at_s = time.perf_counter() - began_s
        router = scrape(self._router_metrics_url, self._key)
        triton = Page()
        for url in self._triton_urls:
            for name, samples in scrape(url).samples.items():
                triton.samples.setdefault(name, []).extend(samples)
        if router.samples or triton.samples:
            self.samples.append(server_sample(round(at_s, 3), router, triton, self._tenant_names))
