"""Triton and routers apart, as in docker-compose.yml: its own commands, secrets and health checks."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
import redis

from router.control.peers.peer_sync import open_board
from tests.lasting import lasting
from tests.stack.conftest import TinyModels
from tests.stack.releasing import quick_engine
from tests.stack.splitting import Split, end, split_deployment

START_LIMIT_S = 90.0


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, tiny_models: TinyModels) -> Iterator[Split]:
    folder = tmp_path_factory.mktemp("split")
    with lasting(split_deployment(folder, tiny_models.usual, quick_engine())) as running:
        running.wait_for(200, START_LIMIT_S)
        yield running


def test_a_caller_with_the_setups_key_is_answered(split: Split) -> None:
    assert split.chat("")[0] == 401
    status, answer = split.chat(split.secret("admin_key"))
    assert status == 200, answer
    assert json.loads(answer)["usage"]["completion_tokens"] >= 1


def test_prometheus_reads_metrics_with_its_key_and_can_do_nothing_else_with_it(split: Split) -> None:
    assert split.ask("/metrics")[0] == 401
    status, text = split.ask("/metrics", split.secret("metrics_key"))
    assert status == 200
    assert "inflight_requests_total" in text
    assert split.chat(split.secret("metrics_key"))[0] == 403


def test_the_health_checks_of_the_containers_hold(split: Split) -> None:
    assert split.health_of("router", (":8080", f":{split.ports['http']}")) == 0
    assert split.health_of("triton", (":8002", f":{split.ports['metrics']}")) == 0
    redis = (("/run/secrets", str(split.secrets)), ("redis-cli", f"redis-cli -p {split.ports['redis']}"))
    assert split.health_of("redis", *redis) == 0


def test_locusts_page_is_served_by_the_command_of_its_container(split: Split) -> None:
    locust = split.locust()
    locust.start()
    try:
        split.wait_for(401, START_LIMIT_S, "/", f"http://127.0.0.1:{split.ports['locust']}")
        assert split.health_of("locust", ("8089", str(split.ports["locust"]))) == 0
        words = " ".join(psutil.Process(locust.process.pid).cmdline())
        page = httpx.get(
            f"http://127.0.0.1:{split.ports['locust']}/", auth=("inflight", split.secret("locust_password"))
        )
        assert page.status_code == 200
    finally:
        end(locust)
    for secret in ("loadtest_key", "locust_password"):
        assert split.secret(secret) not in locust.output + words


def test_the_load_tests_key_asks_models_and_does_nothing_else(split: Split) -> None:
    key = split.secret("loadtest_key")
    assert split.chat(key)[0] == 200
    assert split.ask("/admin/tenants", key)[0] == 403
    assert split.ask("/metrics", key)[0] == 403
    assert split.ask("/v1/files", key)[0] == 403


async def test_a_router_may_do_with_redis_what_it_needs_and_nothing_else(split: Split) -> None:
    one, other = (open_board(split.secret("redis_url"), "of this test") for _ in range(2))
    await one.swap("one", b"told")
    assert await other.swap("other", b"too") == {"one": b"told"}
    await one.close("one")
    assert await other.swap("other", b"too") == {}
    await other.close("other")
    forbidden = (
        "FLUSHALL",
        "CONFIG GET *",
        "KEYS *",
        "ACL LIST",
        "SHUTDOWN",
        "SET others value",
        "MGET others",
    )
    with redis.Redis.from_url(split.secret("redis_url")) as client:
        for command in forbidden:
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.execute_command(*command.split())


def test_routers_on_one_store_serve_side_by_side_and_one_goes_on_when_the_other_dies(split: Split) -> None:
    second, key = split.another_router(), split.secret("admin_key")
    second.start()
    try:
        url = f"http://127.0.0.1:{split.ports['http-2']}"
        split.wait_for(200, START_LIMIT_S, url=url)
        assert split.chat(key)[0] == split.chat(key, url)[0] == 200
        split.router.stop(signal.SIGKILL)
        assert split.chat(key, url)[0] == 200
        split.router.start()
        split.wait_for(200, START_LIMIT_S)
        assert split.chat(key)[0] == 200
        assert second.stop() == 0, second.output
    finally:
        end(second)


def test_the_router_is_not_ready_without_triton_and_both_stop_in_order(split: Split) -> None:
    """The last one: nothing runs after it."""
    triton = psutil.Process(split.triton.process.pid).children(recursive=True)
    assert split.triton.stop() == 0, split.triton.output
    assert not [process for process in triton if process.is_running()]
    split.wait_for(503, 20.0)
    assert split.health_of("router", (":8080", f":{split.ports['http']}")) != 0
    assert split.router.stop() == 0, split.router.output
    said = split.router.output + split.triton.output
    for secret in ("admin_key", "metrics_key", "loadtest_key", "triton_secret", "redis_password"):
        assert split.secret(secret) not in said
    assert secrets_left(split.folder / "state", split) == []


def secrets_left(state: Path, split: Split) -> list[Path]:
    """Files in the shared directory that hold what only some containers are to know."""
    secret = split.secret("triton_secret").encode()
    return [path for path in state.rglob("*") if path.is_file() and secret in path.read_bytes()]
