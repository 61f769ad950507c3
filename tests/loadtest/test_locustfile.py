"""Locust itself, in a process of its own, against a server whose delays are known."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from loadtest.results import RequestResult
from loadtest.tenants import Tenant, write_tenants
from loadtest.users.recorder import RecordReader
from tests.fakes.openai_server import TimedApi, timed_api

# Not by importing it: it would make sockets and threads of all tests gevent's.
pytestmark = pytest.mark.skipif(find_spec("locust") is None, reason="Locust is not installed here")
LOCUSTFILE = Path(__file__).parents[2] / "loadtest" / "locustfile.py"
FIRST_TOKEN_S, BETWEEN_TOKENS_S = 0.12, 0.02


def locust(*arguments: str, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "locust", "-f", str(LOCUSTFILE), "--headless", "--only-summary"]
    return subprocess.run(
        [*command, *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        stdin=subprocess.DEVNULL,
        cwd=folder,
    )


@dataclass
class Ran:
    api: TimedApi
    ended: subprocess.CompletedProcess[str]
    results: list[RequestResult]
    rows: dict[str, dict[str, Any]]  # of Locust's statistics, by name


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("locust")
    write_tenants(folder / "tenants.json", [Tenant("big", "ik-b", 2, "interactive"), Tenant("small", "ik-s")])
    api = TimedApi(FIRST_TOKEN_S, BETWEEN_TOKENS_S, lambda number: number % 7 == 3, lambda n: n % 11 == 5)
    with timed_api(api):
        ended = locust(
            *("--host", api.url, "--users", "6", "--spawn-rate", "6", "--run-time", "3s"),
            *("--stop-timeout", "10s", "--json-file", str(folder / "locust")),
            *("--results", str(folder / "requests")),
            *("--kinds", "chat=3,completions,embeddings,conversation", "--think-s", "0.1", "--turns", "2"),
            *("--answer-tokens", "6", "--longest-tokens", "12", "--tenants", str(folder / "tenants.json")),
            *("--shared-prefix-tokens", "8"),
        )
    reader = RecordReader(folder / "requests")
    rows = {row["name"]: row for row in json.loads((folder / "locust.json").read_text())}
    return Ran(api, ended, reader.read(), rows)


def test_every_request_that_reached_the_server_is_a_result(ran: Ran) -> None:
    ended = [each for each in ran.results if not each.has_left]
    assert len(ended) <= len(ran.api.bodies) <= len(ran.results)
    assert {each.kind for each in ran.results} == {"chat", "completions", "embeddings", "conversation"}


def test_token_times_are_those_of_the_server(ran: Ran) -> None:
    firsts = [each.first_token_s for each in ran.results if each.first_token_s is not None]
    assert firsts
    assert min(firsts) >= FIRST_TOKEN_S
    gaps = [gap_s for each in ran.results if each.is_answered for gap_s in each.gaps_s]
    assert sum(gaps) / len(gaps) >= BETWEEN_TOKENS_S * 0.9


def test_locusts_statistics_have_tokens_beside_answers(ran: Ran) -> None:
    chats = [each for each in ran.results if each.kind == "chat"]
    answered = [each for each in chats if each.is_answered]
    row = ran.rows["chat: first token"]
    assert row["num_requests"] == len(answered)
    assert row["min_response_time"] >= 1000 * FIRST_TOKEN_S
    tokens = sum(each.completion_tokens - 1 for each in answered)
    assert ran.rows["chat: between tokens"]["num_requests"] == tokens


def test_refusals_are_not_failures_and_broken_streams_are(ran: Ran) -> None:
    refused = [each for each in ran.results if each.is_refused]
    failed = [each for each in ran.results if each.has_failed]
    assert refused
    assert failed
    assert {each.error for each in failed} <= {each.error for each in failed if each.status == 200}
    counted = [row["num_requests"] for name, row in ran.rows.items() if name.endswith(": refused")]
    assert sum(counted) == len(refused)
    assert sum(row["num_failures"] for row in ran.rows.values()) == len(failed)
    assert ran.ended.returncode == 1  # as Locust itself ends when something failed


def test_answers_and_failures_are_requests_and_refusals_are_not(ran: Ran) -> None:
    requests = sum(row["num_requests"] for name, row in ran.rows.items() if ":" not in name)
    assert requests == sum(each.is_answered or each.has_failed for each in ran.results)


def test_tenants_have_their_shares_keys_and_tiers(ran: Ran) -> None:
    assert {each.tenant for each in ran.results} == {"big", "small"}
    keys = set(ran.api.keys)
    assert keys == {"Bearer ik-b", "Bearer ik-s"}
    tiers = {each.tier for each in ran.results if each.tenant == "big" and each.kind != "embeddings"}
    assert tiers == {"interactive"}


def test_conversations_grow_and_start_over(ran: Ran) -> None:
    sizes = {len(body["messages"]) for body in ran.api.bodies if "messages" in body}
    assert 4 in sizes  # the instructions, a question, its answer and the next question
    assert all(size % 2 == 0 for size in sizes)


def test_prompts_of_a_tenant_share_their_beginning_and_nothing_more(ran: Ran) -> None:
    chats = [body["messages"] for body in ran.api.bodies if "messages" in body]
    questions = [messages[1]["content"] for messages in chats if len(messages) == 2]
    assert len({messages[0]["content"] for messages in chats}) == 2
    assert len(set(questions)) == len(questions)


def test_an_unreachable_target_ends_locust_with_a_reason() -> None:
    ended = locust("--host", "http://127.0.0.1:9", "--run-time", "5s", "--kinds", "chat")
    assert ended.returncode == 2
    assert "http://127.0.0.1:9 cannot be reached" in ended.stderr + ended.stdout


def test_invalid_options_are_refused_before_anything_is_sent(tmp_path: Path) -> None:
    # From a folder whose own package `loadtest` is not this one.
    (tmp_path / "loadtest").mkdir()
    (tmp_path / "loadtest" / "__init__.py").touch()
    ended = locust("--host", "http://127.0.0.1:9", "--kinds", "chats", folder=tmp_path)
    assert ended.returncode != 0
    assert "allowed: chat, completions" in ended.stderr + ended.stdout
