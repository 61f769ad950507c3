"""Triton and routers apart, as in docker-compose.yml: its own commands, secrets and health checks."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import redis

from router.control.peers.peer_sync import open_board
from tests.deploy.compose.reading import replaced
from tests.lasting import lasting
from tests.pace import is_over, patience
from tests.stack.conftest import TinyModels
from tests.stack.naming import NAME, NameServer, may_serve_names, name_server
from tests.stack.releasing import quick_engine
from tests.stack.splitting import (
    FIRST,
    SECOND,
    Container,
    Split,
    disk_of,
    end,
    has_own_disks,
    split_deployment,
)

START_LIMIT_S = 240.0
STREAMS = 50
AFTERWARDS = 8
ANSWER_TOKENS = 40


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory, tiny_models: TinyModels) -> Iterator[Split]:
    folder = tmp_path_factory.mktemp("split")
    with lasting(split_deployment(folder, tiny_models.usual, quick_engine())) as running:
        running.wait_for(200, START_LIMIT_S)
        yield running


@pytest.fixture(scope="module", autouse=True)
def second_triton(split: Split) -> Iterator[Container]:
    """Begun with the first test, so that it is loaded when one needs it; no router knows of it before."""
    yield from started(split.another_triton())


@dataclass(frozen=True)
class NamedRouter:
    """A second router, which knows its Tritons by the name that they have in `names`."""

    container: Container
    names: NameServer | None
    url: str


@pytest.fixture(scope="module", autouse=True)
def second_router(split: Split, tmp_path_factory: pytest.TempPathFactory) -> Iterator[NamedRouter]:
    """Begun with the first test, too; where nobody may serve names, it knows the first Triton alone."""
    router, port = split.another_router(), split.ports["triton"]
    url = f"http://127.0.0.1:{split.ports['http-2']}"
    if not may_serve_names():
        for container in started(router):
            yield NamedRouter(container, None, url)
        return
    with name_server(tmp_path_factory.mktemp("names"), FIRST) as names:
        named = replaced(router.command, (f"--triton={FIRST}:{port}", f"--triton=dns:///{NAME}:{port}"))
        for container in started(replace(router, command=names.asked_by(named))):
            yield NamedRouter(container, names, url)


def started(container: Container) -> Iterator[Container]:
    container.start()
    try:
        yield container
    finally:
        end(container)


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
            f"http://127.0.0.1:{split.ports['locust']}/",
            auth=("inflight", split.secret("locust_password")),
            timeout=patience(30),
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


def test_routers_on_one_store_serve_side_by_side_and_one_goes_on_when_the_other_dies(
    split: Split, second_router: NamedRouter
) -> None:
    url, key = second_router.url, split.secret("admin_key")
    split.wait_for(200, START_LIMIT_S, url=url)
    assert split.chat(key)[0] == split.chat(key, url)[0] == 200
    split.router.stop(signal.SIGKILL)
    assert split.chat(key, url)[0] == 200
    split.router.start()
    split.wait_for(200, START_LIMIT_S)
    assert split.chat(key)[0] == 200


@pytest.mark.thorough("tests/router/routing/test_discovery.py and test_servers_that_die.py")
async def test_a_triton_joins_and_another_drains_under_fifty_streams_and_none_is_lost(
    split: Split, second_triton: Container, second_router: NamedRouter
) -> None:
    """By the name that both have, in a real name server; each is sent requests exactly while it is named."""
    port, names, router = split.ports["triton"], second_router.names, second_router.container
    if names is None:
        pytest.skip("only root may answer on port 53 and give a program another name server")
    first, second = f"{FIRST}:{port}", f"{SECOND}:{port}"
    split.wait_for(200, START_LIMIT_S, url=second_router.url)
    async with httpx.AsyncClient(base_url=second_router.url, timeout=120, headers=split.key_header()) as http:
        early = [asyncio.create_task(read_stream(http)) for _ in range(STREAMS)]
        assert await replicas_within(http, START_LIMIT_S, {first}) == {first}
        names.say(FIRST, SECOND)
        assert await replicas_within(http, START_LIMIT_S, {first, second}) == {first, second}
        middle = [asyncio.create_task(read_stream(http)) for _ in range(STREAMS)]
        names.say(SECOND)
        assert await asyncio.gather(*early, *middle) == [ANSWER_TOKENS] * (2 * STREAMS)
        assert await replicas_within(http, START_LIMIT_S, {second}) == {second}
        late = [asyncio.create_task(read_stream(http)) for _ in range(AFTERWARDS)]
        names.say(FIRST)
        assert await asyncio.gather(*late) == [ANSWER_TOKENS] * AFTERWARDS
        assert await replicas_within(http, START_LIMIT_S, {first}) == {first}
    assert second_triton.stop() == 0, second_triton.output
    assert "joins" in router.output
    assert router.stop() == 0, router.output


async def read_stream(http: httpx.AsyncClient) -> int:
    """How many tokens came; a stream that is cut or refused raises."""
    message = {"role": "user", "content": "Tell me a long story."}
    body = {"model": "tiny", "max_tokens": ANSWER_TOKENS, "messages": [message], "stream": True}
    body |= {"ignore_eos": True, "stream_options": {"include_usage": True}}
    tokens, is_whole = 0, False
    async with http.stream("POST", "/v1/chat/completions", json=body) as response:
        assert response.status_code == 200, await response.aread()
        async for line in response.aiter_lines():
            if line.startswith("data: {"):
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, event
                tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
            is_whole |= line == "data: [DONE]"
    assert is_whole
    return tokens


async def replicas_within(http: httpx.AsyncClient, limit_s: float, wanted: set[str]) -> set[str]:
    """Those that are sent requests, as soon as they are these, or else when the time is over."""
    began_s = time.monotonic()
    while (found := await replicas_up(http)) != wanted:
        if is_over(began_s, limit_s):
            break
        await asyncio.sleep(0.1)
    return found


async def replicas_up(http: httpx.AsyncClient) -> set[str]:
    text = (await http.get("/metrics")).text
    return set(re.findall(r'^inflight_replica_up{.*replica="([^"]+)".*} 1(?:\.0)?$', text, re.MULTILINE))


@pytest.mark.thorough("tests/launcher/packaging/releases and tests/router/control/releases")
def test_a_release_added_on_one_host_is_loaded_on_another_that_shares_only_the_store(
    split: Split, tiny_models: TinyModels
) -> None:
    adder, triton = disk_of(split.folder, "adder"), disk_of(split.folder, "triton")
    (adder / "data").mkdir(parents=True, exist_ok=True)
    shutil.copytree(tiny_models.other_words, adder / "data" / "other")
    place = split.folder / "data" / "other"
    split.inflight("release", "add", "tiny", str(place), host="adder")
    promote(split, 2)
    split.wait_until(lambda: serving(split) == {"tiny@2"}, START_LIMIT_S)
    status, answer = split.chat(split.secret("admin_key"))
    assert status == 200, answer
    weights = "data/other/model.safetensors"
    assert (triton / weights).read_bytes() == (adder / weights).read_bytes()
    if has_own_disks():
        assert sorted(path.suffix for path in place.iterdir() if path.suffix == ".safetensors") == []
        assert (place / "tokenizer.json").is_file(), "a router needs the tokenizer, and no weights"


def promote(split: Split, version: int) -> None:
    """Over HTTP: the command takes seconds to start."""
    act(split, f"versions/{version}/load")
    split.wait_until(lambda: f"tiny@{version}" in ready(split), START_LIMIT_S)
    act(split, "promote", {"version": version})


def act(split: Split, what: str, body: Any = None) -> None:
    status, answer = split.ask(f"/admin/releases/tiny/{what}", split.secret("admin_key"), body or {})
    assert status == 200, answer


def ready(split: Split) -> dict[str, float]:
    """The releases that are loaded, with their shares of the requests."""
    _, answer = split.ask("/admin/releases", split.secret("admin_key"))
    return {each["release"]: each["share"] for each in json.loads(answer)["data"] if each["state"] == "ready"}


def serving(split: Split) -> set[str]:
    return {release for release, share in ready(split).items() if share}


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
