"""Dashboards and rules against the running stack: what they name is there, and Prometheus has answers."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from benchmarks.stack import RunningStack, free_port
from deploy.monitoring import alerts, recordings
from deploy.monitoring.boards import BOARDS
from deploy.monitoring.expressions import metrics_in, without_variables
from deploy.monitoring.prometheus import CONFIG, ROUTER, TRITON
from deploy.monitoring.rules import rendered
from tests.debian import debian_program
from tests.deploy.monitoring.known_metrics import ON_A_GPU, PROMETHEUS_OWN
from tests.pace import patience
from tests.waiting import wait_until

pytestmark = [pytest.mark.stack, pytest.mark.timeout(120)]

# What a stack that is well does not show, and why. Everything else that is named has to be there.
AFTER_THE_FACT = {
    "inflight_noisy_tenant_ratio": "only of a tenant that asks for too much, while others wait",
    "inflight_redis_reachable": "only with redis_url",
    "inflight_refused_requests_total": "nothing was refused",
    "inflight_rollout_step": "there is no rollout",
    "inflight_shadow_answers_total": "nothing is shadowed",
    "inflight_shadow_likeness_ratio_sum": "nothing is shadowed",
    "inflight_shadow_likeness_ratio_count": "nothing is shadowed",
    "inflight_shadow_request_seconds_bucket": "nothing is shadowed",
    "inflight_triton_errors_total": "Triton has failed no request",
    # Known once some requests have been measured, which other tests on this stack may or may not have sent.
    "inflight_drain_seconds": "the cost of steps is learned from about a hundred of them",
    "inflight_forecasts_total": "forecasts begin when the cost is known",
    "inflight_forecasts_covered_total": "forecasts begin when the cost is known",
    "inflight_replica_step_cost_error_ratio": "the cost of steps is learned from about a hundred of them",
    "inflight_replica_step_cost_frozen": "the cost of steps is learned from about a hundred of them",
}
OBJECTIVE = {"first_token_s": 600.0, "inter_token_s": 60.0}


RULES = [rule.expr for group in (*recordings.GROUPS, *alerts.GROUPS) for rule in group.rules]
CHOICES = [variable.selector for board in BOARDS for variable in board.variables]
QUERIES = [query.expr for board in BOARDS for panel in board.panels for query in panel.queries]
NAMED = {name for expr in (*RULES, *CHOICES, *QUERIES) for name in metrics_in(expr)}


@dataclass(frozen=True)
class Prometheus:
    http: httpx.Client

    def ask(self, expr: str) -> list[dict[str, Any]]:
        """What it has to an expression now; fails with what it says is wrong with it."""
        said = self.http.post("/api/v1/query", data={"query": without_variables(expr)}).json()
        assert said["status"] == "success", f"{expr}: {said}"
        found: list[dict[str, Any]] = said["data"]["result"]
        return found

    def rules(self) -> list[dict[str, Any]]:
        """Each as it was evaluated last."""
        groups = self.http.get("/api/v1/rules").json()["data"]["groups"]
        return [rule for group in groups for rule in group["rules"]]


@pytest.fixture(scope="module")
def asked(stack: RunningStack) -> Iterator[RunningStack]:
    """A stack with an objective that nothing misses, and a little traffic."""
    question = {"model": stack.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    with httpx.Client(base_url=stack.url, timeout=patience(60)) as http:
        objective = f"/admin/objectives/{stack.model}/standard"
        http.put(objective, json=OBJECTIVE).raise_for_status()
        try:
            http.post("/v1/chat/completions", json={**question, "stream": True}).raise_for_status()
            http.post("/v1/embeddings", json={"model": "all-minilm-l6-v2", "input": "a"}).raise_for_status()
            yield stack
        finally:
            http.delete(objective).raise_for_status()


def exposed(url: str) -> set[str]:
    """Names of metrics that have a value."""
    with urllib.request.urlopen(url, timeout=patience(10)) as response:
        return set(re.findall(r"^(\w+)[{ ]", response.read().decode(), re.MULTILINE))


@contextmanager
def running_prometheus(folder: Path, stack: RunningStack) -> Iterator[Prometheus]:
    """The one of Debian, with our configuration, but with these addresses and more often."""
    config = yaml.safe_load(CONFIG)
    router, triton, itself = config["scrape_configs"]
    assert (router["job_name"], triton["job_name"]) == (ROUTER, TRITON)
    port = free_port()
    del router["authorization"]
    router["static_configs"] = [{"targets": [stack.url.removeprefix("http://")]}]
    address = stack.triton_metrics_url.removeprefix("http://").removesuffix("/metrics")
    triton["static_configs"] = [{"targets": [address]}]
    itself["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    (folder / "rules.yml").write_text(rendered((*recordings.GROUPS, *alerts.GROUPS), ""))
    command = [str(debian_program("prometheus", "prometheus")), f"--config.file={folder}/prometheus.yml"]
    command += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=patience(30)) as http:
            wait_until(lambda: is_ready(http), "Prometheus does not start", 30)
            yield Prometheus(http)
    finally:
        process.terminate()
        process.wait(patience(30))


def not_well(prometheus: Prometheus) -> list[dict[str, Any]]:
    return [rule for rule in prometheus.rules() if rule["health"] != "ok"]


def is_ready(http: httpx.Client) -> bool:
    try:
        return http.get("/-/ready").status_code == 200
    except httpx.TransportError:
        return False


def missing(stack: RunningStack) -> set[str]:
    """What is named and is not there, but for what cannot be."""
    there = exposed(f"{stack.url}/metrics") | exposed(stack.triton_metrics_url)
    recorded = {rule.name for group in recordings.GROUPS for rule in group.rules}
    return NAMED - there - recorded - PROMETHEUS_OWN.keys() - ON_A_GPU.keys() - AFTER_THE_FACT.keys()


def test_every_metric_named_in_dashboards_and_rules_exists(asked: RunningStack) -> None:
    """The router asks the engines once a second and Triton every two, and then tells of them."""
    assert AFTER_THE_FACT.keys() <= NAMED, "what nobody names need not be explained"
    with suppress(AssertionError):
        wait_until(lambda: not missing(asked), "", 30)
    assert not missing(asked)


def test_prometheus_has_an_answer_to_every_panel(asked: RunningStack, tmp_path: Path) -> None:
    with running_prometheus(tmp_path, asked) as prometheus:
        read_twice = "count(sum_over_time(up[1m]) >= 2) == 3"  # router, Triton and itself
        wait_until(lambda: bool(prometheus.ask(read_twice)), "the stack is not read", 30)
        last_recorded = recordings.GROUPS[-1].rules[0].name
        wait_until(lambda: bool(prometheus.ask(last_recorded)), "nothing is recorded", 60)
        for board in BOARDS:
            for panel in board.panels:
                answers = [prometheus.ask(query.expr) for query in panel.queries]
                assert any(answers) or panel.no_value, f"{board.uid}: {panel.title} is empty"
        with suppress(AssertionError):  # the last one is evaluated a second after the first
            wait_until(lambda: not_well(prometheus) == [], "", 30)
        assert not_well(prometheus) == []
        firing = prometheus.ask('ALERTS{alertstate="firing"}')
        assert not firing, "a stack that is well has no alerts"
