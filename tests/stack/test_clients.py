"""The clients of tests/clients that the environment of the tests has anyway; `make clients` runs all."""

from __future__ import annotations

import os
import re
import sys

import pytest

from benchmarks.stack import RunningStack
from tests.clients.__main__ import outcomes_of, whereabouts
from tests.clients.catalogue import Client, clients
from tests.clients.environments import ROOT

pytestmark = pytest.mark.stack

OURS = (ROOT / "pyproject.toml").read_text()
SLOW = ("schemathesis",)  # tests/router/test_fuzz.py has it
INSTALLED = [
    client
    for client in clients()
    if not client.is_node and client.package not in SLOW
    if re.search(rf'^    "{client.package}[>\[]', OURS, re.MULTILINE)
]


@pytest.mark.parametrize("client", INSTALLED, ids=lambda client: client.name)
def test_every_use_of_the_client_works(stack: RunningStack, client: Client) -> None:
    environment = {**os.environ, **whereabouts(stack.url, stack.grpc_url, "none-needed")}
    outcomes = outcomes_of(client, environment, [sys.executable, str(client.path)])
    assert outcomes
    assert not [outcome for outcome in outcomes if outcome.problem]
