"""Tracing by the settings: checked at the start, and nothing of OpenTelemetry is imported where it is off."""

from __future__ import annotations

import asyncio
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from router.settings import SettingsError
from router.telemetry.tracing.tracer import Tracer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AsyncExitStack

    from prometheus_client.core import Metric

    from router.settings import Options
    from router.telemetry.metrics import Metrics
    from router.telemetry.tracing.otlp import OtlpOutlet

_NEEDED = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_FLUSH_TIMEOUT_S = 5.0


def open_tracer(settings: Options, metrics: Metrics, version: str, closing: AsyncExitStack) -> Tracer | None:
    """None where requests are not traced. What is left at the end is sent, for a few seconds at most."""
    check_tracing(settings)
    if not settings.otlp_endpoint:
        return None
    from router.telemetry.tracing.otlp import OtlpOutlet

    outlet = OtlpOutlet(settings.otlp_endpoint, headers_of(settings), version)
    metrics.expose(TraceMetrics(outlet))
    closing.push_async_callback(asyncio.to_thread, outlet.close, _FLUSH_TIMEOUT_S)
    return Tracer(outlet, settings.trace_percent)


def check_tracing(settings: Options) -> None:
    """Raises SettingsError for what could not be traced."""
    endpoint = settings.otlp_endpoint
    if not endpoint:
        for key in ("otlp_headers", "otlp_headers_file"):
            if getattr(settings, key):
                raise SettingsError(f"{key} is set but otlp_endpoint is not: set both or neither")
        return
    if not _is_url(endpoint):
        raise SettingsError(
            f"otlp_endpoint = {endpoint!r}: expected the URL of an OTLP/HTTP collector, http://HOST:4318"
        )
    headers_of(settings)
    if not all(map(_is_installed, _NEEDED)):
        raise SettingsError(
            f"otlp_endpoint = {endpoint!r}: traces need OpenTelemetry, which is not installed: "
            "pip install 'inflight[tracing]'"
        )


def headers_of(settings: Options) -> dict[str, str]:
    """What the collector is to be shown with all spans; those in the file win."""
    headers = _read_headers("otlp_headers", settings.otlp_headers.split(","))
    if file := settings.otlp_headers_file:
        try:
            text = Path(file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"otlp_headers_file = {file!r}: cannot be read: {error}") from error
        headers |= _read_headers("otlp_headers_file", text.splitlines())
    return headers


def _read_headers(key: str, pairs: list[str]) -> dict[str, str]:
    """Never shows a value: it may be a secret."""
    headers = {}
    for pair in filter(None, map(str.strip, pairs)):
        name, found, value = pair.partition("=")
        name, value = name.strip().lower(), value.strip()
        is_name = name.isascii() and name.replace("-", "").replace("_", "").isalnum()
        if not (found and is_name and value.isascii() and value.isprintable()):
            raise SettingsError(
                f"{key}: expected NAME=VALUE, one per line in the file, otherwise separated by commas"
            )
        headers[name] = value
    return headers


def _is_url(text: str) -> bool:
    try:
        url = urlsplit(text)
        is_whole = bool(url.hostname) and url.port != 0
    except ValueError:
        return False
    return (
        is_whole
        and url.scheme in ("http", "https")
        and not (url.username or url.password or url.query or url.fragment)
        and text.isprintable()
        and " " not in text
    )


def _is_installed(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:  # not even what is around it
        return False


class TraceMetrics(Collector):
    """What became of spans; exposed only while requests are traced."""

    def __init__(self, outlet: OtlpOutlet) -> None:
        self._outlet = outlet

    def collect(self) -> Iterator[Metric]:
        counts = self._outlet.counts
        yield CounterMetricFamily(
            "inflight_spans_sent", "Spans accepted by the collector.", value=counts.sent
        )
        dropped = CounterMetricFamily(
            "inflight_spans_dropped",
            "Spans dropped: queue_full or export_failed.",
            labels=("reason",),
        )
        dropped.add_metric(("queue_full",), self._outlet.dropped)
        dropped.add_metric(("export_failed",), counts.failed)
        yield dropped
