"""What is generated is in the repository as the code says, and every alert has its page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

pytest.importorskip("grafana_foundation_sdk", reason="Grafana's builders need Python 3.11")

from deploy.monitoring import alerts, grafana
from deploy.monitoring.generated import DEPLOY, files
from launcher.commands.main import app

ROOT = Path(__file__).parents[3]
MADE = files()


@pytest.mark.parametrize("path", MADE, ids=lambda path: str(path.relative_to(DEPLOY)))
def test_a_generated_file_is_current(path: Path) -> None:
    assert path.read_text() == MADE[path], "python -m deploy.monitoring writes it anew"


def test_only_generated_files_are_in_the_generated_folders() -> None:
    there = {path for folder in ("grafana", "prometheus") for path in (DEPLOY / folder).rglob("*.*")}
    assert there - MADE.keys() == {DEPLOY / "prometheus/rules.test.yml"}


def test_grafana_finds_its_datasource_and_its_dashboards() -> None:
    (source,) = yaml.safe_load(grafana.DATASOURCES)["datasources"]
    assert source["uid"] == grafana.DATASOURCE_UID
    assert source["editable"] is False
    (provider,) = yaml.safe_load(grafana.PROVIDERS)["providers"]
    assert provider["options"]["path"] == grafana.DASHBOARDS_PATH
    assert provider["allowUiUpdates"] is False


def test_every_alert_has_a_section_and_every_section_an_alert() -> None:
    page = (ROOT / "docs/alerts.md").read_text()
    assert re.findall(r"^### (\w+)$", page, re.MULTILINE) == [alert.name for alert in alerts.ALERTS]
    for section in page.split("\n### ")[1:]:
        name = section.split("\n", 1)[0]
        for part in ("**Means.**", "**Look.**", "**Causes.**", "**Do.**"):
            assert part in section, f"{name} does not say {part}"


def test_commands_on_the_alerts_page_exist() -> None:
    said = set(re.findall(r"`inflight ((?:[a-z]+ ?)+)", (ROOT / "docs/alerts.md").read_text()))
    assert len(said) > 10
    for words in said:
        command: Any = typer.main.get_command(app)
        for word in words.split():
            assert word in command.commands, f"inflight {words}"
            command = command.commands[word]


def test_every_dashboard_is_documented() -> None:
    page = (ROOT / "docs/dashboards.md").read_text()
    for path in MADE:
        if path.suffix == ".json":
            assert f"`{path.stem}`" in page
