"""Locust's page: nobody starts a run there without the password, and nobody sends keys elsewhere."""

from __future__ import annotations

import base64
import http.client
import os
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.stack import free_port
from loadtest.users.web_page import PASSWORD_VARIABLE, USER, judge
from tests.fakes.openai_server import TimedApi, timed_api
from tests.pace import patience
from tests.waiting import wait_until

LOCUSTFILE = Path(__file__).parents[3] / "loadtest" / "locustfile.py"
PASSWORD = "a password for the page"
LOGIN = {"Authorization": "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()}
FIXED = {"host": "http://router:8080", "grpc_address": "", "tenants": ""}


@pytest.mark.parametrize(
    "authorization", ["", "Basic", "Basic !", "Bearer x", "Basic " + base64.b64encode(b"inflight:").decode()]
)
def test_nothing_is_answered_without_the_password(authorization: str) -> None:
    refused = judge(PASSWORD, "GET", {"Authorization": authorization}, {}, FIXED)
    assert refused is not None
    assert refused.status == 401


def test_whoever_knows_the_password_sees_the_page_and_starts_a_run() -> None:
    headers = {**LOGIN, "Host": "127.0.0.1:8089", "Origin": "http://127.0.0.1:8089"}
    assert judge(PASSWORD, "GET", headers, {}, FIXED) is None
    form = {"user_count": "1", "host": "http://router:8080/"}
    assert judge(PASSWORD, "POST", headers, form, FIXED) is None
    assert judge(PASSWORD, "POST", {**headers, "Sec-Fetch-Site": "same-origin"}, form, FIXED) is None


@pytest.mark.parametrize(
    "told", [{"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}]
)
def test_a_form_of_another_site_is_refused_though_the_browser_adds_the_password(told: dict[str, str]) -> None:
    refused = judge(PASSWORD, "POST", {**LOGIN, "Host": "127.0.0.1:8089", **told}, {}, FIXED)
    assert refused is not None
    assert refused.status == 403


@pytest.mark.parametrize(
    "form", [{"host": "http://evil.example"}, {"grpc_address": "evil.example:1"}, {"tenants": "/etc/passwd"}]
)
def test_where_keys_go_and_which_files_are_read_is_not_changed_on_the_page(form: dict[str, str]) -> None:
    refused = judge(PASSWORD, "POST", LOGIN, form, FIXED)
    assert refused is not None
    assert refused.status == 403


@dataclass
class Page:
    port: int
    target: TimedApi
    elsewhere: TimedApi
    process: subprocess.Popen[bytes] = field(repr=False)

    def swarm(self, host: str, headers: dict[str, str]) -> int:
        """The status of a form that starts a run against a host; 0 while nobody listens."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=patience(10))
        body = urllib.parse.urlencode({"user_count": 1, "spawn_rate": 1, "host": host})
        form = {"Content-Type": "application/x-www-form-urlencoded", **headers}
        try:
            connection.request("POST", "/swarm", body, form)
            return connection.getresponse().status
        except OSError:
            return 0
        finally:
            connection.close()


@pytest.fixture
def page(tmp_path: Path) -> Iterator[Page]:
    """Locust with a key, an API that it is for, and one of somebody else."""
    target, elsewhere, port = TimedApi(0.01, 0.01), TimedApi(0.01, 0.01), free_port()
    with timed_api(target), timed_api(elsewhere):
        command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--host", target.url]
        command += ["--web-host", "127.0.0.1", "--web-port", str(port), "--kinds", "chat"]
        environment = {**os.environ, PASSWORD_VARIABLE: PASSWORD, "INFLIGHT_API_KEY": "ik-of-ours"}
        with (tmp_path / "locust.log").open("wb") as log:
            process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            yield Page(port, target, elsewhere, process)
        finally:
            process.terminate()
            process.wait(patience(20))
        assert PASSWORD not in (tmp_path / "locust.log").read_text()


@pytest.mark.skipif(find_spec("locust") is None, reason="Locust is not installed here")
def test_a_running_page_sends_its_key_to_its_target_alone(page: Page) -> None:
    wait_until(lambda: page.swarm(page.elsewhere.url, {}) != 0, limit_s=60)
    assert page.swarm(page.elsewhere.url, {}) == 401
    assert page.swarm(page.elsewhere.url, {**LOGIN, "Origin": "http://evil.example"}) == 403
    assert page.swarm(page.elsewhere.url, LOGIN) == 403
    assert page.swarm(page.target.url, LOGIN) == 200
    wait_until(lambda: page.target.bodies, limit_s=60)
    assert page.elsewhere.bodies == []
