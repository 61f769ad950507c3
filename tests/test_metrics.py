"""All metrics keep one scheme, and each is documented, with its type and its labels."""

from __future__ import annotations

import re

import promql_parser
import pytest

from python_backend.triton_adapter.metrics import FAMILIES
from router.core.stages import STAGES
from router.telemetry.metrics import Metrics
from router.telemetry.tracing.setup import TraceMetrics
from tests.documented_metrics import PAGE, Documented, documented, exposed
from tests.router_metrics import router_metrics

POSTPROCESSING = "inflight_engine_postprocessing_streams"
UNITS = ("seconds", "tokens", "bytes", "ratio")
THINGS = ("adapters", "requests", "records", "replicas", "sequences", "blocks", "streams", "routers")
STATES = ("up", "reachable", "frozen", "in_flight", "share", "step", "info")
OTHER_UNITS = ("ms", "us", "ns", "milliseconds", "minutes", "percent", "kb", "mb", "latency")


class NoSpans:
    """What the metrics of tracing look at."""

    sent = failed = dropped = 0

    @property
    def counts(self) -> NoSpans:
        return self


def of_router() -> dict[str, Documented]:
    """By their families: those without values too."""
    metrics = router_metrics()
    metrics.registry.register(TraceMetrics(NoSpans()))  # type: ignore[arg-type]  # that is all it looks at
    found = {}
    for family in metrics.registry.collect():
        if family.name.startswith("inflight_"):
            name = {"counter": f"{family.name}_total", "info": f"{family.name}_info"}.get(
                family.type, family.name
            )
            named = getattr(family, "_labelnames", None)
            labels = frozenset(named if named is not None else family.samples[0].labels)
            found[name] = Documented(name, {"info": "gauge"}.get(family.type, family.type), labels)
    return found


def of_engine() -> dict[str, Documented]:
    found = {
        name: Documented(name, family.kind.lower(), frozenset({"model", "version"} | ({family.label} - {""})))
        for name, family in FAMILIES.items()
    }
    streams = Documented(POSTPROCESSING, "gauge", frozenset({"model", "version"}))
    return {**found, POSTPROCESSING: streams}


def test_every_metric_is_documented_with_type_and_labels_and_no_other_is() -> None:
    told = {
        name: each
        for name, each in documented().items()
        if not name.startswith(("nv_inf", "nv_cpu", "nv_gpu"))
    }
    assert told == {**of_router(), **of_engine()}


def test_values_of_labels_that_the_code_fixes_are_documented() -> None:
    words = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    for family in FAMILIES.values():
        assert set(family.values) - {""} <= words
    assert set(STAGES) <= words


@pytest.mark.parametrize("metric", [*of_router().values(), *of_engine().values()], ids=lambda each: each.name)
def test_metric_names_keep_the_scheme(metric: Documented) -> None:
    if metric.name.startswith("nv_"):
        return  # NVIDIA's
    assert re.fullmatch(r"inflight(_[a-z0-9]+)+", metric.name)
    assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert not set(metric.name.split("_")) & set(OTHER_UNITS)
    if metric.kind != "counter":
        endings = UNITS if metric.kind == "histogram" else UNITS + THINGS + STATES
        assert metric.name.endswith(tuple(f"_{each}" for each in endings)), "what is its unit?"


def test_the_engines_metrics_have_names_of_their_own() -> None:
    of_triton = {name for name in of_engine() if name.startswith("inflight_")}
    assert all(name.startswith("inflight_engine_") for name in of_triton)
    assert not any(name.startswith("inflight_engine_") for name in of_router())


def test_the_running_version_is_a_metric() -> None:
    assert exposed(Metrics().render().decode())["inflight_build_info"].labels == {"version"}


@pytest.mark.parametrize("query", re.findall(r"```promql\n(.*?)```", PAGE.read_text(), re.DOTALL))
def test_documented_queries_are_valid_and_name_existing_metrics(query: str) -> None:
    promql_parser.parse(query)
    named = re.findall(r"\b(?:inflight|nv)_\w+", query)
    assert named
    assert {
        re.sub(r"_seconds_(bucket|sum|count)$", "_seconds", name) for name in named
    } <= documented().keys()
