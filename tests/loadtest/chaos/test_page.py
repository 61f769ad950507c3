"""The report names every fault, every violation and what was left out."""

from __future__ import annotations

from itertools import islice

from loadtest.chaos.episode import EpisodeResult
from loadtest.chaos.page import chaos_page
from loadtest.chaos.plan import chosen, episodes
from loadtest.results import RequestResult


def results() -> list[EpisodeResult]:
    made = []
    for episode in islice(episodes(1, chosen([]), 5.0), 25):
        result = EpisodeResult(episode, "a <victim>", 1.0, 3.0, 6.0)
        whole = RequestResult("0", 1.0, status=200, ended_s=1.0, completion_tokens=2, first_token_s=0.5)
        cut = RequestResult("1", 2.0, status=200, error="ClientPayloadError")
        result.requests = [whole, cut, RequestResult("2", 2.0, status=429)]
        made.append(result)
    return made


def test_a_clean_run_says_so_and_shows_every_fault() -> None:
    page = chaos_page("inflight chaos --seed 1", results(), {"skew-clock": "libfaketime is missing"}, "here")
    assert "No violation in 25 faults" in page
    assert "a &lt;victim&gt;" in page
    assert "<victim>" not in page
    assert "libfaketime is missing" in page
    assert page.count("<circle") == 75
    assert "http" not in page.replace("http-equiv", ""), "one file, which loads nothing"


def test_violations_are_counted_and_told() -> None:
    broken = results()
    broken[3].violations = ["2 blocks are left", "r<1> never ended"]
    page = chaos_page("inflight chaos", broken, {}, "here")
    assert "2 violations in 25 faults" in page
    assert "r&lt;1&gt; never ended" in page
