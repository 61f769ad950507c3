from __future__ import annotations

import pytest

from loadtest.users.models import Target, TargetError, find_target
from loadtest.users.options import KINDS, grpc_address, kinds_text, read_kinds
from tests.fakes.openai_server import EMBEDDING_MODEL, TEXT_MODEL, TimedApi, timed_api


def test_kinds_of_users_are_read_as_written() -> None:
    assert read_kinds(kinds_text(KINDS)) == KINDS
    assert read_kinds("chat, triton=3,embeddings=0") == {"chat": 1, "triton": 3}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("chats=1", "'chats'; allowed: chat,"),
        ("chat=x", "whole number"),
        ("chat=0", "no users"),
        ("", "no users"),
    ],
)
def test_unreadable_kinds_say_why(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_kinds(text)


def test_grpc_is_on_the_second_port_of_the_host_unless_given() -> None:
    assert grpc_address("", "http://10.0.0.7:9000") == "10.0.0.7:8081"
    assert grpc_address("", "http://[::1]:9000") == "[::1]:8081"
    assert grpc_address("h:1", "http://10.0.0.7:9000") == "h:1"


def test_text_and_embedding_models_are_found_by_what_they_accept() -> None:
    with timed_api(TimedApi()) as api:
        assert find_target(api.url) == Target(TEXT_MODEL, EMBEDDING_MODEL)
        assert find_target(api.url, model=f"{TEXT_MODEL}@2").text == f"{TEXT_MODEL}@2"
        with pytest.raises(TargetError, match="has no model 'other'; it has: timed-text"):
            find_target(api.url, model="other")


def test_an_unreachable_target_says_so() -> None:
    with pytest.raises(TargetError, match="cannot be reached"):
        find_target("http://127.0.0.1:9")
