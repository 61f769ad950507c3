"""The doctor in a router's container, where there is no Triton to be checked."""

from __future__ import annotations

import importlib.util
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

from launcher.commands.deployment.model_facts import write_facts
from launcher.commands.doctor.finding import Verdict, failure, fine
from launcher.commands.doctor.router_alone import is_router_alone, without_tritons
from launcher.packaging.triton_runtime import HOME_VARIABLE
from launcher.settings import Settings
from launcher.stack.router_process import Served

FIND = importlib.util.find_spec


def none_of_triton(name: str, package: str | None = None) -> ModuleSpec | None:
    return None if name == "pytriton" else FIND(name, package)


def test_a_router_is_alone_without_a_local_triton_and_with_facts_from_a_remote_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(router={"state_dir": str(tmp_path)})
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    monkeypatch.setattr(importlib.util, "find_spec", none_of_triton)
    assert not is_router_alone(settings), "nobody has told: an installation that is broken"
    write_facts(tmp_path, Served((), ()))
    assert is_router_alone(settings)
    monkeypatch.setenv(HOME_VARIABLE, "/opt/tritonserver")
    assert not is_router_alone(settings)
    monkeypatch.delenv(HOME_VARIABLE)
    monkeypatch.setattr(importlib.util, "find_spec", FIND)
    assert not is_router_alone(settings), "beside a Triton"


def test_checks_for_triton_are_skipped_in_a_routers_container() -> None:
    found = without_tritons([failure("Triton", "missing", "make install"), fine("store", "it answers")])
    assert [each.verdict for each in found] == [Verdict.SKIPPED, Verdict.OK]
    assert found[0].what == "for Triton, which runs elsewhere"
