"""Programs of Debian packages, for tests that run them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import debian
from tests.debian import debian_program


def test_a_program_on_the_path_is_used_as_it_is() -> None:
    assert debian_program("dash", "sh").name == "sh"


@pytest.mark.parametrize("program", ["start-stop-daemon"])
def test_programs_of_administrators_are_found(program: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert debian.find(program) is not None


@pytest.mark.parametrize(("in_ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_an_unavailable_program_skips_a_test_and_fails_it_in_ci(
    in_ci: str, outcome: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CI", in_ci)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(outcome, match=f"no-such-program of the Debian package none{in_ci} is not on this"):
        debian_program(f"none{in_ci}", "no-such-program")


def test_a_package_is_unpacked_without_the_right_to_install(tmp_path: Path) -> None:
    if not list(Path("/var/lib/apt/lists").glob("*Packages*")):
        pytest.skip("apt-get knows no packages here")
    script = debian.unpack("hello", "hello", tmp_path)
    assert "Hello" in subprocess.run([script], capture_output=True, text=True, check=True).stdout
    assert debian.unpack("hello", "hello", tmp_path) == script
