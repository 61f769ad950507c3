"""What is said of an audit, whatever came of it."""

from __future__ import annotations

import subprocess
from typing import Any

import pytest

from deploy import audit

WEAK = {"name": "old", "version": "1.0", "vulns": [{"id": "PYSEC-2"}, {"id": "CVE-1"}]}
SOUND = {"name": "new", "version": "2.0", "vulns": []}
UNKNOWN = {"name": "own", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "said"),
    [
        ([SOUND, UNKNOWN], "some.hashes: 0 of 1 packages have known vulnerabilities"),
        ([SOUND, WEAK], "some.hashes: 1 of 2 packages have known vulnerabilities\n  old 1.0: CVE-1, PYSEC-2"),
        (
            [UNKNOWN],
            "some.hashes: the vulnerability service knows none of the packages, so nothing was checked",
        ),
        ([], "some.hashes: the vulnerability service knows none of the packages, so nothing was checked"),
    ],
)
def test_weak_packages_are_named_and_unchecked_ones_are_not_called_sound(
    packages: list[dict[str, Any]], said: str
) -> None:
    assert audit.report("some.hashes", {"dependencies": packages}) == said


def test_a_service_that_cannot_be_reached_is_a_line_for_each_list(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        raise subprocess.TimeoutExpired(command, 60)

    monkeypatch.setattr(subprocess, "run", silent)
    audit.main()
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in said] == list(audit.FILES)
    assert all("nothing was checked" in line for line in said)
