"""`inflight loadtest report` and `compare`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.commands.main import app
from loadtest.report.storage import FILE_NAME, to_json
from tests.loadtest.report.made_runs import busy_run


def run(*arguments: object) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["loadtest", *map(str, arguments)], env={"COLUMNS": "200"})
    return result.exit_code, result.stdout, result.stderr


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("runs")
    for name, run_ in (("usual", busy_run(1)), ("slow", busy_run(2, slower=1.5))):
        (folder / name).mkdir()
        (folder / name / FILE_NAME).write_text(json.dumps(to_json(run_)))
    return folder / "usual", folder / "slow"


def test_a_report_is_written_again_beside_its_run(folders: tuple[Path, Path]) -> None:
    usual, _ = folders
    code, stdout, _ = run("report", usual / "results.json")
    assert code == 0
    assert stdout == f"Report: {usual / 'report.html'}\n"
    assert (usual / "report.html").is_file()


def test_two_runs_are_compared_and_the_status_can_say_which_is_worse(
    folders: tuple[Path, Path], tmp_path: Path
) -> None:
    code, stdout, _ = run("compare", *folders, "--out", tmp_path, "--check")
    assert code == 1
    assert "The second run is worse in" in stdout
    assert (tmp_path / "comparison.html").is_file()


@pytest.mark.parametrize("command", ["report", "compare"])
def test_an_unwritable_folder_is_named(command: str, folders: tuple[Path, Path]) -> None:
    runs = folders[:1] if command == "report" else folders
    code, _, stderr = run(command, *runs, "--out", "/proc/nowhere")
    assert code == 2
    assert stderr == "inflight: --out: nothing can be written to /proc/nowhere: No such file or directory\n"


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    code, _, stderr = run("report", tmp_path)
    assert code == 2
    assert "results.json cannot be read: No such file" in stderr
