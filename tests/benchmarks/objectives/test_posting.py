"""Requests that are answered whole go out at their moments, in the order of which they are told."""

from __future__ import annotations

from benchmarks.objectives.posting import Door, post, post_alone
from tests.fakes.completions_server import CompletionsServer, serving_aside


def test_each_request_is_posted_once_and_reported_in_order() -> None:
    with serving_aside(CompletionsServer(first_s=0.05)) as server:
        door = Door(
            server.url, "/v1/completions", lambda number: {"prompt": "x", "max_tokens": 2, "n": number}
        )
        alone = post_alone(door, 3, pause_s=0.02)
        assert [body["n"] for body in server.bodies] == [-1, 0, 1, 2]
        some = post(door, 100.0, 0.2, seed=1)
    assert [round(each.at_s, 2) for each in alone] == [0.0, 0.02, 0.04]
    assert all(each.status == 200 and each.took_s >= 0.05 for each in (*alone, *some))
    assert [each.at_s for each in some] == sorted(each.at_s for each in some)
    assert len(some) == len(server.bodies) - 5
