"""The real Prometheus and Alertmanager, started as docker-compose.yml does, with the secrets of setup.sh."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import yaml

from benchmarks.stack import free_port
from deploy.compose_file import ROOT, compose
from tests.debian import debian_program
from tests.deploy.compose.reading import replaced
from tests.waiting import wait_until

COMPOSE = compose()["services"]["prometheus"]["command"]
PATHS = [
    *("/", "/api/v1/query?query=up", "/api/v1/label/__name__/values", "/federate?match[]=up", "/metrics"),
    *("/api/v1/targets", "/api/v1/status/config", "/-/healthy", "/graph", "/api/v1/alerts"),
]
STRANGERS = ("https://evil.example", "http://127.0.0.1:1", "null")


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("deployment")
    shutil.copytree(
        ROOT / "deploy/compose", folder / "deploy/compose", ignore=shutil.ignore_patterns("secrets")
    )
    subprocess.run(["sh", ROOT / "deploy/compose/setup.sh", folder], check=True, stdout=subprocess.DEVNULL)
    return folder / "deploy/compose/secrets"


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[httpx.Client]:
    with log.open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as http:

            def answers() -> bool:
                assert process.poll() is None, log.read_text()
                try:
                    return http.get("/-/ready", auth=None).status_code > 0
                except httpx.TransportError:
                    return False

            wait_until(answers, f"it does not start: {log.read_text()}", 60)
            yield http
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture(scope="module")
def prometheus(secrets: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder, port = tmp_path_factory.mktemp("prometheus"), free_port()
    config = (ROOT / "deploy/prometheus/prometheus.yml").read_text()
    config = config.replace("/run/secrets", str(secrets)).replace("127.0.0.1:9090", f"127.0.0.1:{port}")
    (folder / "prometheus.yml").write_text(config.replace("interval: 15s", "interval: 1s"))
    shutil.copy(ROOT / "deploy/prometheus/rules.yml", folder)
    command = replaced(
        [str(debian_program("prometheus", "prometheus")), *COMPOSE],
        ("/etc/prometheus", str(folder)),
        ("path=/prometheus", f"path={folder}/data"),
        ("/run/secrets", str(secrets)),
    )
    with running([*command, f"--web.listen-address=127.0.0.1:{port}"], port, folder / "log") as http:
        yield http


def who(secrets: Path) -> tuple[str, str]:
    return "inflight", (secrets / "prometheus_password").read_text()


@pytest.mark.parametrize("path", PATHS)
def test_prometheus_answers_nothing_without_its_login(prometheus: httpx.Client, path: str) -> None:
    assert prometheus.get(path).status_code == 401
    assert prometheus.get(path, auth=("inflight", "guessed")).status_code == 401
    assert prometheus.get(path, auth=("", "")).status_code == 401


def test_prometheus_answers_with_its_login_and_reads_itself_by_it(
    prometheus: httpx.Client, secrets: Path
) -> None:
    login = who(secrets)
    assert prometheus.get("/-/healthy", auth=login).status_code == 200

    def reads_itself() -> bool:
        found = prometheus.get(
            "/api/v1/query", params={"query": 'up{job="prometheus"} == 1'}, auth=login
        ).json()
        return bool(found["data"]["result"])

    wait_until(reads_itself, "Prometheus does not read itself", 60)


@pytest.mark.parametrize("origin", STRANGERS)
def test_a_page_of_another_origin_gets_nothing(prometheus: httpx.Client, secrets: Path, origin: str) -> None:
    """Nor with the login that a browser keeps: the answer is not the page's to read."""
    asked = {"Origin": origin}
    assert prometheus.get("/api/v1/query?query=up", headers=asked).status_code == 401
    for method in ("GET", "OPTIONS"):
        answer = prometheus.request(method, "/api/v1/query?query=up", headers=asked, auth=who(secrets))
        assert "access-control-allow-origin" not in answer.headers


def test_a_name_that_was_pointed_to_this_machine_gets_nothing(prometheus: httpx.Client) -> None:
    """A browser has no login for that name, whatever address it has."""
    for host in ("evil.example", "evil.example:9090", "localhost"):
        assert prometheus.get("/api/v1/query?query=up", headers={"Host": host}).status_code == 401


def test_grafana_is_given_the_login_that_prometheus_asks_for(prometheus: httpx.Client, secrets: Path) -> None:
    """As Grafana reads its file: `$__file{PATH}` is the file's content."""
    text = (ROOT / "deploy/grafana/provisioning/datasources/inflight.yml").read_text()
    (source,) = yaml.safe_load(text)["datasources"]
    assert source["basicAuth"] is True
    named = re.fullmatch(r"\$__file\{/run/secrets/(\w+)\}", source["secureJsonData"]["basicAuthPassword"])
    assert named
    login = (source["basicAuthUser"], (secrets / named[1]).read_text())
    assert prometheus.get("/api/v1/status/buildinfo", auth=login).status_code == 200


def test_the_health_check_needs_no_password_and_notices_a_missing_login(
    prometheus: httpx.Client, secrets: Path, tmp_path: Path
) -> None:
    kind, line = compose()["services"]["prometheus"]["healthcheck"]["test"]
    assert kind == "CMD-SHELL"
    debian_program("wget", "wget")

    def check(port: int | None) -> int:
        ours = line.replace("127.0.0.1:9090", f"127.0.0.1:{port}").replace("wget ", "wget --tries=1 ")
        return subprocess.run(["sh", "-c", ours], capture_output=True, check=False).returncode

    assert check(prometheus.base_url.port) == 0
    assert check(free_port()) != 0
    (tmp_path / "prometheus.yml").write_text("global: {}\n")
    port = free_port()
    words = ["--config.file=prometheus.yml", "--storage.tsdb.path=data"]
    command = [str(debian_program("prometheus", "prometheus")), *words]
    command = [word.replace("=", f"={tmp_path}/") if word in words else word for word in command]
    with running([*command, f"--web.listen-address=127.0.0.1:{port}"], port, tmp_path / "log") as http:
        assert http.get("/-/healthy").status_code == 200
        assert check(port) != 0, "the login was left out"


def test_an_alertmanager_takes_the_same_login(secrets: Path, tmp_path: Path) -> None:
    port = free_port()
    (tmp_path / "alertmanager.yml").write_text("route: {receiver: none}\nreceivers: [{name: none}]\n")
    command = [
        str(debian_program("prometheus-alertmanager", "prometheus-alertmanager")),
        f"--config.file={tmp_path}/alertmanager.yml",
        f"--storage.path={tmp_path}/data",
        f"--web.config.file={secrets}/prometheus_web",
        f"--web.listen-address=127.0.0.1:{port}",
        "--cluster.listen-address=",
    ]
    with running(command, port, tmp_path / "log") as http:
        for path in ("/", "/api/v2/alerts", "/api/v2/status", "/metrics"):
            assert http.get(path).status_code == 401
        assert http.get("/api/v2/status", auth=who(secrets)).status_code == 200
