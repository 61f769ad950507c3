"""Every metric there is: the router's and the engine's from their code, Triton's and Prometheus's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from prometheus_client.core import Metric as MetricFamily

from deploy.monitoring import recordings
from deploy.monitoring.expressions import KnownMetric, labels_of
from deploy.monitoring.rules import Recording
from python_backend.triton_adapter.metrics import FAMILIES
from python_backend.wire.tiers import Tier
from router.admission.demand import Reason
from router.core.objective import Metric
from router.core.record import Outcome
from router.core.stages import STAGES
from tests.router_metrics import router_metrics

_TIERS = frozenset(tier.label for tier in Tier)
# Label values that cannot be read off a metric which has counted nothing yet.
_VALUES = {
    "tier": _TIERS,
    "stage": frozenset(STAGES),
    "metric": frozenset(metric.value for metric in Metric),
    "reason": frozenset(reason.value for reason in Reason),
}
_ENDINGS = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "info": ("_info",)}
_OF_MODEL = frozenset({"model", "version"})
_OF_GPU = frozenset({"gpu_uuid"})

TRITONS_OWN = {
    **dict.fromkeys(
        (
            "nv_inference_request_success",
            "nv_inference_count",
            "nv_inference_exec_count",
            "nv_inference_queue_duration_us",
            "nv_inference_compute_infer_duration_us",
            "nv_inference_pending_request_count",
        ),
        KnownMetric(_OF_MODEL),
    ),
    "nv_inference_request_failure": KnownMetric(_OF_MODEL | {"reason"}),
    **dict.fromkeys(
        ("nv_inference_queue_summary_us", "nv_inference_compute_infer_summary_us"),
        KnownMetric(
            _OF_MODEL | {"quantile"}, {"quantile": frozenset({"0.5", "0.9", "0.95", "0.99", "0.999"})}
        ),
    ),
    **dict.fromkeys(
        ("nv_cpu_utilization", "nv_cpu_memory_used_bytes", "nv_cpu_memory_total_bytes"),
        KnownMetric(frozenset()),
    ),
}
ON_A_GPU = dict.fromkeys(
    (
        "nv_gpu_utilization",
        "nv_gpu_memory_used_bytes",
        "nv_gpu_memory_total_bytes",
        "nv_gpu_power_usage",
        "nv_gpu_power_limit",
    ),
    KnownMetric(_OF_GPU),
)
PROMETHEUS_OWN = {
    "up": KnownMetric(frozenset()),
    "ALERTS": KnownMetric(frozenset({"alertname", "alertstate", "severity"}), is_recorded=True),
}


def known_metrics() -> dict[str, KnownMetric]:
    """By the names under which they are asked for, recorded ones too."""
    known = {**dict(_of_router()), **dict(_of_engine()), **TRITONS_OWN, **ON_A_GPU, **PROMETHEUS_OWN}
    for group in recordings.GROUPS:
        for rule in group.rules:
            assert isinstance(rule, Recording)
            known[rule.name] = KnownMetric(labels_of(rule.expr, known), is_recorded=True)
    return known


def _of_router() -> Iterator[tuple[str, KnownMetric]]:
    metrics = router_metrics()
    for family in metrics.registry.collect():
        labels = frozenset(getattr(family, "_labelnames", ())) | _seen(family)
        values = {label: _VALUES[label] for label in labels & _VALUES.keys()}
        if family.name == "inflight_requests_ended":
            values["outcome"] = frozenset(outcome.value for outcome in Outcome)
        yield from _named(family.name, family.type, labels, values)


def _seen(family: MetricFamily) -> frozenset[str]:
    return frozenset(label for sample in family.samples for label in sample.labels) - {"le"}


def _of_engine() -> Iterator[tuple[str, KnownMetric]]:
    for name, family in FAMILIES.items():
        labels = _OF_MODEL | ({family.label} if family.label else set())
        values = {family.label: frozenset(family.values)} if family.label else {}
        kind = family.kind.lower()
        yield from _named(name.removesuffix("_total") if kind == "counter" else name, kind, labels, values)
    yield "inflight_engine_postprocessing_streams", KnownMetric(_OF_MODEL)


def _named(
    name: str, kind: str, labels: frozenset[str], values: Mapping[str, frozenset[str]]
) -> Iterator[tuple[str, KnownMetric]]:
    for ending in _ENDINGS.get(kind, ("",)):
        more = {"le"} if ending == "_bucket" else set()
        yield name + ending, KnownMetric(labels | more, values)
