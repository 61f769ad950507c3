"""Pages stand alone, hold every plot, and say what the file for programs says."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from loadtest.report import compare, load_run, write_report
from loadtest.report.figures import summary_of
from loadtest.report.page import count, percent, rate, time
from loadtest.report.storage import stored
from loadtest.results import LoadRun, RequestResult
from tests.loadtest.report.made_runs import BEGAN_AT, answered, busy_run, failed, samples

PLOTS = {
    *(
        "first-token-over-time",
        "end-to-end-over-time",
        "first-token-distribution",
        "inter-token-distribution",
    ),
    *("throughput", "queue", "batch", "kv", "tenants", "tenants-over-time", "stages"),
}
_VOID = {"meta", "br", "hr", "img", "link"}


class Page(HTMLParser):
    """Checks that what is opened is closed, and notes what it refers to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.drawn: set[str] = set()
        self.figures: list[str] = []
        self.ids: list[str] = []
        self.refers_to: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        assert not values.keys() & {"onload", "onclick", "srcset"}
        self.refers_to += [values[name] for name in ("href", "src", "xlink:href") if name in values]
        self.refers_to += re.findall(r"url\(([^)]*)\)", values.get("style", "") + values.get("clip-path", ""))
        self.ids += [values["id"]] if "id" in values else []
        if tag == "figure":
            self.figures.append(values["id"])
        if tag == "svg":
            self.drawn.add(self.figures[-1])
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text += f" {data}"


def read(path: Path) -> Page:
    text = path.read_text()
    assert "http" not in text.replace("http://127.0.0.1", "")
    assert "@import" not in text
    assert "<script" not in text
    page = Page(text)
    assert all(each.startswith("#") for each in page.refers_to)
    assert {each[1:] for each in page.refers_to} <= set(page.ids)
    assert len(page.ids) == len(set(page.ids))
    return page


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(busy_run(), tmp_path_factory.mktemp("report"))


def test_a_report_is_self_contained_and_has_every_plot(report: Path) -> None:
    page = read(report)
    assert set(page.figures) == page.drawn == PLOTS
    assert report.stat().st_size < 600_000
    assert "<script>a & b</script>" in page.text  # as text
    assert "inflight loadtest replay --trace x.csv" in page.text
    for title in ("Tiers", "Tenants", "Slowest requests", "Errors and refusals", "Objectives", "Stages"):
        assert title in page.text


def test_kinds_of_requests_are_shown_apart_where_there_are_several(tmp_path: Path) -> None:
    chat = answered()
    chat.kind = "chat"
    page = read(write_report(LoadRun("mixed", BEGAN_AT, 1.0, [chat, EMBEDDING]), tmp_path))
    assert "Kinds of requests" in page.text
    assert set(json.loads((tmp_path / "results.json").read_text())["summary"]["kinds"]) == {
        "chat",
        "embeddings",
    }


def test_the_numbers_on_the_page_are_those_of_the_file(report: Path) -> None:
    page = read(report)
    data = json.loads((report.parent / "results.json").read_text())
    figures = data["summary"]["figures"]
    assert data["version"] == 1
    assert data["summary"]["verdict"]["text"] in page.text
    for name in ("first_token_s", "between_tokens_s", "ended_s"):
        for share in ("p50", "p95", "p99"):
            assert time(figures[name][share]) in page.text
    for name in ("goodput_per_s", "good_tokens_per_s", "answered_per_s", "tokens_per_s"):
        assert f"{rate(figures[name])} /s" in page.text
    for tenant in data["summary"]["tenants"].values():
        assert count(tenant["completion_tokens"]) in page.text


def test_a_report_rebuilt_from_its_own_file_is_the_same(report: Path) -> None:
    told = json.loads((report.parent / "results.json").read_text())["summary"]
    again = json.loads(json.dumps(summary_of(stored(load_run(report.parent)))))
    assert told["verdict"] == again["verdict"]
    for name in ("good", "late", "goodput_per_s", "first_token_s", "ended_s"):
        assert told["figures"][name] == again["figures"][name]
    between = [each["figures"]["between_tokens_s"]["p95"] for each in (told, again)]
    assert between[0] == pytest.approx(between[1], rel=0.01)


NOTHING_HAPPENED = LoadRun("nothing", BEGAN_AT, 0.0)
ALL_FAILED = LoadRun("failed", BEGAN_AT, 2.0, [failed(), failed(1.0)], planned=5)
ONE = LoadRun("one", BEGAN_AT, 1.0, [answered(tokens=1, tenant="")])
EMBEDDING = RequestResult("embeddings", 0.0, status=200, ended_s=0.02)
NO_TOKENS = LoadRun("embeddings", BEGAN_AT, 1.0, [EMBEDDING], samples(1))


@pytest.mark.parametrize("run", [NOTHING_HAPPENED, ALL_FAILED, ONE, NO_TOKENS], ids=lambda run: run.name)
def test_a_nearly_empty_run_has_a_report(tmp_path: Path, run: LoadRun) -> None:
    page = read(write_report(run, tmp_path))
    assert set(page.figures) == PLOTS
    assert load_run(tmp_path).name == run.name
    assert not re.search(r"\bnan\b", page.text)


def test_two_runs_are_drawn_over_one_another(tmp_path: Path) -> None:
    page = read(compare(busy_run(1), busy_run(2, slower=1.5), tmp_path))
    assert set(page.figures) == page.drawn == PLOTS - {"tenants-over-time"}
    data = json.loads((tmp_path / "comparison.json").read_text())
    assert data["verdict"] in page.text
    by_name = {row["metric"]: row for row in data["rows"]}
    assert time(by_name["inter-token p95"]["second"]) in page.text
    assert percent(by_name["good"]["first"]) in page.text


def test_a_comparison_with_an_empty_run_gives_no_verdict(tmp_path: Path) -> None:
    page = read(compare(NOTHING_HAPPENED, ALL_FAILED, tmp_path))
    assert "No conclusion is possible" in page.text


def test_times_and_shares_are_formatted_for_reading() -> None:
    assert [time(value) for value in (None, 0.00123, 0.0456, 0.789, 1.234, 56.78)] == [
        *("–", "1.23 ms", "45.6 ms", "789 ms", "1.23 s", "56.8 s"),
    ]
    assert [percent(share) for share in (None, 0.0, 0.5, 0.9999, 1.0)] == [
        *("–", "0.0 %", "50.0 %", "99.99 %", "100.0 %"),
    ]
    assert [rate(value) for value in (None, 0.0, 0.1234, 12.34, 12345.6)] == [
        "–",
        "0",
        "0.123",
        "12.3",
        "12,346",
    ]
