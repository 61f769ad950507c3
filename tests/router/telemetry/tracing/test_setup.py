from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from router.settings import Options, SettingsError
from router.telemetry.metrics import Metrics
from router.telemetry.tracing import setup
from router.telemetry.tracing.setup import check_tracing, headers_of, open_tracer

URL = "http://127.0.0.1:4318"


async def test_without_an_endpoint_there_is_no_tracer() -> None:
    async with AsyncExitStack() as closing:
        metrics = Metrics()
        assert open_tracer(Options(), metrics, "1", closing) is None
        assert b"inflight_spans" not in metrics.render()


async def test_with_an_endpoint_there_are_a_tracer_and_its_metrics() -> None:
    async with AsyncExitStack() as closing:
        metrics = Metrics()
        assert open_tracer(Options(otlp_endpoint=URL), metrics, "1", closing) is not None
        assert b'inflight_spans_dropped_total{reason="queue_full"} 0.0' in metrics.render()


@pytest.mark.parametrize(
    "endpoint",
    ["127.0.0.1:4318", "grpc://host:4317", "http://", "http://a:b@host", "http://host?x=1", "http://h:99999"],
)
def test_an_invalid_otlp_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(SettingsError, match=r"otlp_endpoint = .*http://HOST:4318"):
        check_tracing(Options(otlp_endpoint=endpoint))


@pytest.mark.parametrize("endpoint", [URL, f"{URL}/", "https://collector.example/otlp", f"{URL}/v1/traces"])
def test_a_valid_otlp_endpoint_is_accepted(endpoint: str) -> None:
    check_tracing(Options(otlp_endpoint=endpoint))


def test_missing_tracing_packages_are_reported_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for missing in ("opentelemetry.sdk_of_nobody", "nobody.at.all"):
        monkeypatch.setattr(setup, "_NEEDED", (missing,))
        with pytest.raises(SettingsError, match=r"otlp_endpoint = .*pip install 'inflight\[tracing\]'"):
            check_tracing(Options(otlp_endpoint=URL))
    check_tracing(Options())


def test_headers_come_from_the_setting_and_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "headers"
    file.write_text("Authorization=Bearer a=b\n\nX-Scope=two\n")
    settings = Options(otlp_endpoint=URL, otlp_headers="x-scope=one, x-org = 7", otlp_headers_file=str(file))
    assert headers_of(settings) == {"authorization": "Bearer a=b", "x-scope": "two", "x-org": "7"}


def test_invalid_headers_are_refused_without_showing_them(tmp_path: Path) -> None:
    for headers in ("secret", "a b=secret", "name=secret\x01"):
        with pytest.raises(SettingsError, match="otlp_headers: expected NAME=VALUE") as raised:
            check_tracing(Options(otlp_endpoint=URL, otlp_headers=headers))
        assert "secret" not in str(raised.value)
    with pytest.raises(SettingsError, match=r"otlp_headers_file = .*cannot be read"):
        check_tracing(Options(otlp_endpoint=URL, otlp_headers_file=str(tmp_path / "none")))


def test_headers_without_an_endpoint_are_refused() -> None:
    with pytest.raises(SettingsError, match="otlp_headers is set but otlp_endpoint is not"):
        check_tracing(Options(otlp_headers="a=b"))
