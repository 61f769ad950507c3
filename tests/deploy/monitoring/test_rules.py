"""Prometheus's rules: they name what there is, Prometheus takes them, and alerts fire when they should."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.monitoring import alerts, recordings, rules
from deploy.monitoring.expressions import labels_of
from deploy.monitoring.prometheus import ROUTER, TRITON
from deploy.monitoring.rules import Alert
from tests.debian import debian_program
from tests.deploy.monitoring.known_metrics import known_metrics

ROOT = Path(__file__).parents[3]
PROMETHEUS = ROOT / "deploy/prometheus"
CASES: dict[str, Any] = yaml.safe_load((PROMETHEUS / "rules.test.yml").read_text())
KNOWN = known_metrics()
PAGES = [page for page in sorted((ROOT / "docs").glob("*.md")) if "```promql" in page.read_text()]
BY_NAME = pytest.mark.parametrize("alert", alerts.ALERTS, ids=lambda alert: alert.name)


def promtool(*arguments: str | Path) -> str:
    command = [debian_program("prometheus", "promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def judged() -> list[tuple[str, bool]]:
    """Each alert that a case looks for, and whether it is to fire there."""
    found = []
    for case in CASES["tests"]:
        for look in case.get("promql_expr_test", ()):
            for name in re.findall(r'alertname="(\w+)"', look["expr"]):
                found.append((name, bool(look.get("exp_samples"))))
        found += [
            (look["alertname"], bool(look.get("exp_alerts"))) for look in case.get("alert_rule_test", ())
        ]
    return found


@BY_NAME
def test_an_alert_queries_existing_metrics_and_names_its_labels(alert: Alert) -> None:
    labels = labels_of(alert.expr, KNOWN)
    told = set(re.findall(r"\$labels\.(\w+)", alert.summary + alert.description))
    assert told <= labels | {"instance"}
    assert alert.severity in ("critical", "warning", "info")
    assert alert.runbook == f"docs/alerts.md#{alert.name.lower()}"
    assert not alert.summary.endswith(".")
    assert alert.description.endswith(".")


@BY_NAME
def test_every_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(alert: Alert) -> None:
    assert {fires for name, fires in judged() if name == alert.name} == {True, False}


def test_rule_test_cases_are_of_existing_alerts() -> None:
    assert {name for name, _ in judged()} == {alert.name for alert in alerts.ALERTS}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_expressions_in_the_documentation_query_existing_metrics(page: Path) -> None:
    for block in re.findall(r"^```promql\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
        for expr in re.split(r"\n(?=\S)", block.strip()):
            labels_of(expr, KNOWN)


def test_names_of_rules_are_unique() -> None:
    names = [rule.name for group in (*recordings.GROUPS, *alerts.GROUPS) for rule in group.rules]
    assert len(set(names)) == len(names)


def test_a_fast_burn_threshold_can_be_reached() -> None:
    """Ten times a budget of 5 % would be half of all requests, and more than 20 times it cannot be missed."""
    assert 1 < alerts.SLOW < alerts.FAST < 1 / alerts.BUDGET


def test_prometheus_accepts_the_rules_and_every_test_case_passes() -> None:
    assert f"{len(alerts.ALERTS) + recorded()} rules found" in promtool(
        "check", "rules", PROMETHEUS / "rules.yml"
    )
    assert "SUCCESS" in promtool("test", "rules", PROMETHEUS / "rules.test.yml")


def recorded() -> int:
    return sum(len(group.rules) for group in recordings.GROUPS)


def test_prometheus_accepts_its_configuration(tmp_path: Path) -> None:
    """But for the secrets, which are there in the container alone."""
    for secret in ("metrics_key", "prometheus_password"):
        (tmp_path / secret).write_text("a secret")
    text = (PROMETHEUS / "prometheus.yml").read_text().replace("/run/secrets", str(tmp_path))
    (tmp_path / "prometheus.yml").write_text(text)
    (tmp_path / "rules.yml").write_text((PROMETHEUS / "rules.yml").read_text())
    assert "SUCCESS" in promtool("check", "config", tmp_path / "prometheus.yml")
    jobs = {job["job_name"] for job in yaml.safe_load(text)["scrape_configs"]}
    assert jobs == {ROUTER, TRITON, "prometheus"}


def test_the_rules_yaml_equals_the_code() -> None:
    text = rules.rendered((*recordings.GROUPS, *alerts.GROUPS), "# a header\n")
    read = yaml.safe_load(text)["groups"]
    assert [group["name"] for group in read] == [group.name for group in (*recordings.GROUPS, *alerts.GROUPS)]
    exprs = [rule["expr"] for group in read for rule in group["rules"]]
    assert exprs == [rule.expr for group in (*recordings.GROUPS, *alerts.GROUPS) for rule in group.rules]
