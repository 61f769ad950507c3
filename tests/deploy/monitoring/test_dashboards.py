"""The dashboards: whole, readable, and asking for what there is."""

from __future__ import annotations

import json
import re
from itertools import combinations
from typing import Any

import pytest

pytest.importorskip("grafana_foundation_sdk", reason="Grafana's builders need Python 3.11")

from deploy.monitoring.board import GRID_WIDTH, Board, Panel
from deploy.monitoring.boards import BOARDS
from deploy.monitoring.expressions import labels_of
from deploy.monitoring.grafana import DATASOURCE_UID, rendered
from tests.deploy.monitoring.known_metrics import known_metrics

KNOWN = known_metrics()
BY_UID = pytest.mark.parametrize("board", BOARDS, ids=lambda board: board.uid)


def drawn(board: Board) -> list[dict[str, Any]]:
    """The panels as Grafana reads them, without the rows that head them."""
    panels: list[dict[str, Any]] = json.loads(rendered(board))["panels"]
    return [panel for panel in panels if panel["type"] != "row"]


def overlaps(one: dict[str, int], other: dict[str, int]) -> bool:
    beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
    above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
    return not (beside or above)


@BY_UID
def test_every_panel_queries_existing_metrics_and_its_legend_distinguishes_the_series(board: Board) -> None:
    for panel in board.panels:
        for query in panel.queries:
            shown = set(re.findall(r"\{\{(\w+)\}\}", query.legend))
            labels = labels_of(query.expr, KNOWN)
            assert shown <= labels, f"{panel.title}: the legend {query.legend} of {query.expr}"
            if panel.kind == "table":
                continue
            fixed = set(re.findall(r'(\w+)="', query.expr)) | {"job", "instance", "version"}
            assert labels - fixed <= shown, (
                f"{panel.title}: series look the same in the legend {query.legend}"
            )


@BY_UID
def test_every_dashboard_variable_is_an_existing_label_and_is_used(board: Board) -> None:
    names = {variable.name for variable in board.variables}
    used = {
        name
        for panel in board.panels
        for query in panel.queries
        for name in re.findall(r"\$(\w+)", query.expr)
    }
    assert {name for name in used if not name.startswith("__")} == names
    for variable in board.variables:
        assert variable.label in labels_of(variable.selector, KNOWN)


@BY_UID
def test_every_panel_has_a_title_a_unit_and_a_description(board: Board) -> None:
    for panel in drawn(board):
        assert panel["title"]
        assert panel["description"].endswith("."), panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
        assert panel["targets"], panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}"


@BY_UID
def test_no_panel_overlaps_another(board: Board) -> None:
    places = [panel["gridPos"] for panel in json.loads(rendered(board))["panels"]]
    assert all(place["x"] + place["w"] <= GRID_WIDTH for place in places)
    assert not [pair for pair in combinations(places, 2) if overlaps(*pair)]


@BY_UID
def test_titles_and_ids_of_panels_are_unique(board: Board) -> None:
    panels = json.loads(rendered(board))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    assert len({panel["title"] for panel in panels}) == len(panels)


def test_dashboards_have_unique_names_and_are_read_only() -> None:
    made = [json.loads(rendered(board)) for board in BOARDS]
    assert len({each["uid"] for each in made}) == len(made) == 5
    assert len({each["title"] for each in made}) == len(made)
    assert not any(each["editable"] for each in made)
    chosen = [each["templating"]["list"][0] for each in made]
    assert {(each["type"], each["current"]["value"]) for each in chosen} == {("datasource", DATASOURCE_UID)}


def test_gpu_only_panels_say_so() -> None:
    panels: list[Panel] = [panel for board in BOARDS for panel in board.panels]
    of_gpus = [panel for panel in panels if any("nv_gpu_" in query.expr for query in panel.queries)]
    assert of_gpus
    assert all("(GPU only)" in panel.title and panel.no_value for panel in of_gpus)


def test_no_field_that_grafana_reads_is_null() -> None:
    assert not [board.uid for board in BOARDS if ": null" in rendered(board)]
