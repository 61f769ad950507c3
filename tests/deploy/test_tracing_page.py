from __future__ import annotations

import re
from pathlib import Path

import yaml

from router.settings import Options
from router.telemetry.tracing.setup import check_tracing

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "tracing.md").read_text()


def test_the_documented_collector_fits_beside_the_compose_file() -> None:
    (block,) = re.findall(r"```yaml\n(.+?)```", PAGE, re.DOTALL)
    (name, service), *others = yaml.safe_load(block)["services"].items()
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
    assert not others
    assert name not in compose["services"]
    assert set(service["networks"]) <= compose["networks"].keys()
    assert set(service["networks"]) & set(compose["services"]["router"]["networks"])
    assert not service["image"].endswith(":latest")
    check_tracing(Options(otlp_endpoint=f"http://{name}:4318"))


def test_the_routers_image_has_what_tracing_needs() -> None:
    assert "--extra tracing" in (ROOT / "deploy" / "python.Dockerfile").read_text()
