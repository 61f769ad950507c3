"""What a dashboard is made of, before it is Grafana's: boards of sections of panels of queries."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

GRID_WIDTH = 24
TOKENS_PER_S = "suffix: tok/s"
# What a variable stands for while all is chosen: requests that came to no model have an empty label.
EVERYTHING = ".+"


@dataclass(frozen=True, slots=True)
class Query:
    """One expression in PromQL; `legend` names its series, with {{label}} for the value of a label."""

    expr: str
    legend: str


@dataclass(frozen=True, slots=True)
class Panel:
    """`kind`: lines, stacked areas, one number, or a table. A panel without data says `no_value`."""

    title: str
    description: str
    unit: str
    queries: tuple[Query, ...]
    kind: str = "lines"
    width: int = 12
    height: int = 8
    no_value: str = ""
    largest: float | None = None
    steps: tuple[tuple[float, str], ...] = ()  # from this value on, this colour


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """What a reader chooses: all values that `label` of `metric` has, among the metrics that match."""

    name: str
    label: str
    metric: str
    matching: str = ""
    title: str = ""

    @property
    def selector(self) -> str:
        return f"{self.metric}{{{self.matching}}}" if self.matching else self.metric

    @property
    def query(self) -> str:
        return f"label_values({self.selector}, {self.label})"


MODEL = Variable("model", "model", "inflight_replica_up")
RELEASE = Variable("release", "release", "inflight_replica_up", 'model=~"$model"')
REPLICA = Variable("replica", "replica", "inflight_replica_up", 'model=~"$model"')
TENANT = Variable("tenant", "tenant", "inflight_requests_total")
TRITON = Variable("triton", "instance", "nv_inference_request_success", title="Triton server")
TRITON_MODEL = Variable(
    "triton_model", "model", "nv_inference_request_success", 'instance=~"$triton"', title="Triton model"
)


@dataclass(frozen=True, slots=True)
class Board:
    uid: str
    title: str
    description: str
    sections: tuple[Section, ...]
    variables: tuple[Variable, ...] = field(default=(MODEL,))

    @property
    def panels(self) -> Iterator[Panel]:
        for section in self.sections:
            yield from section.panels


def quantile(share: float, metric: str, by: str, matching: str = "") -> str:
    """Of a histogram, over the interval that Grafana finds right for the width of the plot."""
    buckets = f"sum by (le, {by}) (rate({metric}_bucket{{{matching}}}[$__rate_interval]))"
    return f"histogram_quantile({share:g}, {buckets})"


def rate(metric: str, by: str, matching: str = "") -> str:
    return f"sum by ({by}) (rate({metric}{{{matching}}}[$__rate_interval]))"
