from __future__ import annotations

import json
import logging
import stat
from pathlib import Path

import pytest

from router.core.record import Record
from router.core.tenant import LOCAL_CALLER
from router.telemetry import prompt_log
from router.telemetry.prompt_log import Entry, PromptLog, delete_prompts, is_too_old
from tests.waiting import wait_until

NOW_S = 1_794_740_000.0  # 2026-11-15
TODAY = "prompts-2026-11-15.jsonl"


def entry(prompt: str = "hi", at_s: float = NOW_S) -> Entry:
    return Entry(at_s, "req-1", "org-1", "tiny", (prompt,), ("hello",), "stop")


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_prompts_are_written_redacted_and_readable_by_the_owner_alone(tmp_path: Path) -> None:
    kept = PromptLog(tmp_path / "log", 7, clock=lambda: NOW_S)
    kept.start()
    record = Record("/v1/completions", "cmpl-1", LOCAL_CALLER, model="tiny", finish_reason="stop")
    kept.write(record, ["mail ann@example.org"], ["from 10.1.2.3", "line\nbreak"])
    kept.stop()
    path = tmp_path / "log" / "local" / TODAY
    assert lines(path) == [
        {
            "at_s": NOW_S,
            "request_id": "cmpl-1",
            "tenant": "local",
            "model": "tiny",
            "prompts": ["mail [redacted email]"],
            "answers": ["from [redacted address]", "line\nbreak"],
            "finish_reason": "stop",
        }
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_each_day_has_a_file_and_old_ones_are_deleted_at_the_start(tmp_path: Path) -> None:
    for day in ("2026-11-07", "2026-11-08"):
        (tmp_path / "org-1").mkdir(exist_ok=True)
        (tmp_path / "org-1" / f"prompts-{day}.jsonl").touch()
    kept = PromptLog(tmp_path, 7, clock=lambda: NOW_S)
    kept.start()
    kept.add(entry(at_s=NOW_S))
    kept.add(entry(at_s=NOW_S + 86_400))
    kept.stop()
    names = sorted(path.name for path in (tmp_path / "org-1").iterdir())
    assert names == ["prompts-2026-11-08.jsonl", TODAY, "prompts-2026-11-16.jsonl"]


def test_old_files_are_deleted_while_the_log_runs(tmp_path: Path) -> None:
    now_s = [NOW_S]
    kept = PromptLog(tmp_path, 1, clock=lambda: now_s[0], sweep_s=0.01)
    kept.start()
    kept.add(entry())
    now_s[0] += 3 * 86_400
    wait_until(lambda: (tmp_path / "org-1").exists() and not (tmp_path / "org-1" / TODAY).exists())
    kept.stop()


def test_without_a_retention_limit_no_file_is_too_old() -> None:
    assert not is_too_old("prompts-1999-01-01.jsonl", NOW_S, 0)
    assert is_too_old("prompts-2026-11-13.jsonl", NOW_S, 1)
    assert not is_too_old("prompts-2026-11-14.jsonl", NOW_S, 1)


def test_entries_beyond_the_disks_pace_are_dropped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prompt_log, "_MAX_WAITING_CHARS", 20)
    kept = PromptLog(tmp_path, 0)
    kept.add(entry())
    kept.add(entry("x" * 100))
    kept.add(entry())
    assert kept.dropped == 1
    kept.start()
    kept.stop()
    assert len(lines(tmp_path / "org-1" / TODAY)) == 2


def test_a_failing_disk_is_logged_once_and_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept = PromptLog(tmp_path, 0)
    (tmp_path / "org-1").write_text("in the way")
    kept.start()
    for _ in range(3):
        kept.add(entry("secret words"))
    with caplog.at_level(logging.ERROR):
        kept.stop()
    assert caplog.text.count("prompts cannot be logged") == 1
    assert "secret" not in caplog.text


def test_a_tenants_prompts_can_be_deleted(tmp_path: Path) -> None:
    kept = PromptLog(tmp_path, 0)
    kept.start()
    kept.add(entry())
    kept.stop()
    delete_prompts(tmp_path, "org-2")
    assert (tmp_path / "org-1").exists()
    delete_prompts(tmp_path, "org-1")
    assert not (tmp_path / "org-1").exists()


def test_what_was_logged_of_a_request_is_found_around_midnight_too(tmp_path: Path) -> None:
    kept = PromptLog(tmp_path / "log", 0)
    kept.start()
    midnight_s = 1_794_700_800.0
    for number, at_s in enumerate((midnight_s - 1, midnight_s + 1)):
        kept.add(Entry(at_s, f"req-{number}", "org-1", "tiny", ('"request_id":"req-7"',), ("hello",), "stop"))
    kept.stop()
    for number in range(2):
        found = kept.find("org-1", f"req-{number}", midnight_s)
        assert found is not None
        assert found.request_id == f"req-{number}"
    assert kept.find("org-1", "req-7", midnight_s) is None
    assert kept.find("org-1", "req", midnight_s) is None
    assert kept.find("org-2", "req-0", midnight_s) is None
