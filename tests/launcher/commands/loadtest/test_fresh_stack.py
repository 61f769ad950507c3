from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from launcher.commands.loadtest.fresh_stack import TENANTS, StackFailed, _register, _wait, announced
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import open_administration

SAID = """
Inflight is ready after 3.2 s.
  address  http://127.0.0.1:20422/v1  (OpenAI-compatible)
  models   smollm2-135m-instruct, all-minilm-l6-v2 (embeddings)
  gRPC     127.0.0.1:20423  (KServe v2, for Triton's clients)
  Triton   127.0.0.1:1  (gRPC), http://127.0.0.1:2/metrics
  and      127.0.0.1:3  (gRPC), http://127.0.0.1:4/metrics
"""


def test_addresses_are_those_that_the_stack_announces() -> None:
    stack = announced(SAID)
    assert stack.url == "http://127.0.0.1:20422"
    assert stack.grpc_address == "127.0.0.1:20423"
    assert stack.triton_address == "127.0.0.1:1"
    assert stack.triton_metrics_urls == ("http://127.0.0.1:2/metrics", "http://127.0.0.1:4/metrics")


def test_a_stack_that_announces_nothing_has_failed() -> None:
    with pytest.raises(StackFailed, match="did not print its addresses"):
        announced("")


def test_each_tenant_gets_its_own_key_before_the_router_starts(tmp_path: Path) -> None:
    keyed, names = _register(tmp_path / "state", TENANTS)
    assert [tenant.name for tenant in keyed] == [tenant.name for tenant in TENANTS]
    assert len({tenant.key for tenant in keyed}) == len(TENANTS)
    with open_administration(tmp_path / "state") as admin:
        there = {each.id: each.name for each in admin.list_organisations(SYSTEM)}
    assert names.items() <= there.items()


def test_a_stack_that_does_not_come_up_shows_its_output(tmp_path: Path) -> None:
    output = tmp_path / "stack.log"
    with output.open("w") as file:
        code = "import sys; sys.exit('there is no such model')"
        process = subprocess.Popen([sys.executable, "-c", code], stderr=file)
    with pytest.raises(StackFailed, match=r"(?s)status 1.*there is no such model"):
        _wait(process, output)
