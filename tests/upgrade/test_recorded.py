"""One version back: each side understands what the other said one version ago, and the store serves both."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sql
from tritonclient.grpc import service_pb2

from deploy.compose_file import ROOT
from launcher.commands.deployment.model_facts import parse_facts
from python_backend.triton_adapter.request_parameters import asks_for_report
from python_backend.triton_adapter.requests import ModelRules, StopCall, decode_call
from python_backend.wire import codec
from router.core.generation import Delta
from router.store import migrate
from router.store.database import Store, sqlite_url
from router.triton.messages import DeltaReader, read_engine_report
from tests.upgrade.recorded import decoded, recorded, said_by
from tests.upgrade.versions import THIS, Version

BEFORE, SAID = recorded()
RULES = ModelRules(decoupled=True, exclude_input=True, isolate_tenants=False, max_sequences=1)
GENERATING = sorted(SAID["requests"])


@cache
def now() -> dict[str, Any]:
    return said_by(Version(ROOT, THIS))


def message_of(text: str) -> Any:
    return service_pb2.ModelInferRequest.FromString(decoded(text))


def as_version(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(".")))


def test_what_is_recorded_is_of_the_version_before() -> None:
    assert as_version(BEFORE) < as_version(THIS)


@pytest.mark.parametrize("is_old", [True, False], ids=["old router", "new router"])
@pytest.mark.parametrize("name", GENERATING)
def test_a_router_sends_the_other_versions_pipeline_only_inputs_that_it_has(is_old: bool, name: str) -> None:
    one, other = (SAID, now()) if is_old else (now(), SAID)
    known = other["contract"]["ensemble"]
    message = message_of(one["requests"][name])
    sent = {each.name: each.datatype for each in message.inputs}
    assert sent.items() <= known["inputs"].items()
    assert not known["inputs"].keys() - known["optional"].keys() - sent.keys(), "what is demanded is there"


def test_no_output_has_gone_or_changed_its_type() -> None:
    for model, tables in SAID["contract"].items():
        assert tables["outputs"].items() <= now()["contract"][model]["outputs"].items(), model


@pytest.mark.parametrize("name", GENERATING)
def test_this_router_reads_what_the_triton_before_answers(name: str) -> None:
    reader = DeltaReader(max_tokens=100)
    deltas = [reader.read(decoded(each)) for each in SAID["answers"][name]]
    assert not reader.error
    read = [each for each in deltas if isinstance(each, Delta)]
    assert read[-1].finish is not None
    assert sum(each.completion_tokens for each in read) >= 1
    assert any(each.text for each in read)
    if name == "logged":
        assert any(token.log_prob is not None for each in read for token in each.tokens)


def test_this_router_reads_the_report_of_an_engine_before() -> None:
    reports = [
        read_engine_report(service_pb2.ModelStreamInferResponse.FromString(decoded(each)).infer_response)
        for each in SAID["answers"]["report"]
    ]
    assert [each for each in reports if each is not None]


def test_this_engine_understands_what_the_router_before_tells_it() -> None:
    for name in ("stop", "report", "configure"):
        message = message_of(SAID["controls"][name])
        inputs = {
            each.name: np.array(codec.decode(each.datatype, raw)).reshape(tuple(each.shape))
            for each, raw in zip(message.inputs, message.raw_input_contents, strict=True)
        }
        parameters = {
            key: getattr(each, each.WhichOneof("parameter_choice"))
            for key, each in message.parameters.items()
        }
        call = decode_call(message.id, inputs, parameters, RULES)
        assert isinstance(call, StopCall)
        assert asks_for_report(parameters) is (name == "report")


def test_this_router_reads_what_the_triton_before_says_it_serves() -> None:
    served, _ = parse_facts(SAID["facts"], "the file")
    assert served.models
    assert served.ports == ()


def test_routers_before_read_the_releases_that_this_version_writes() -> None:
    """They refuse what they do not know, so a release that needs nothing new says nothing new."""
    assert now()["release"].keys() <= SAID["release"].keys()
    assert now()["release"]["needs"].keys() <= SAID["release"]["needs"].keys()


@pytest.fixture
def stores(tmp_path: Path) -> tuple[sql.MetaData, sql.MetaData]:
    """The tables of the version before, and those that this one makes of them."""
    found = []
    for version in (SAID["schema"], migrate.revisions()[-1]):
        store = Store(sqlite_url(tmp_path / f"{version}.db"))
        migrate.upgrade(store.engine, version)
        tables = sql.MetaData()
        tables.reflect(store.engine)
        found.append(tables)
        store.close()
    return found[0], found[1]


def test_routers_before_go_on_with_a_store_that_this_version_has_migrated(
    stores: tuple[sql.MetaData, sql.MetaData],
) -> None:
    """Nothing that they read has gone, and nothing that they do not know is demanded of what they write."""
    before, now_there = stores
    for name, table in before.tables.items():
        kept = now_there.tables[name].columns
        for column in table.columns:
            assert str(kept[column.name].type) == str(column.type), f"{name}.{column.name}"
            assert kept[column.name].nullable or not column.nullable, f"{name}.{column.name}"
        for column in kept:
            is_new = column.name not in table.columns
            assert not is_new or column.nullable or column.server_default is not None, f"{name}.{column.name}"
        ruled = [unique_in(which.tables[name]) for which in (now_there, before)]
        assert ruled[0] == ruled[1], f"{name}: a router before knows nothing of a new rule"


def unique_in(table: sql.Table) -> set[tuple[str, ...]]:
    return {tuple(each.columns.keys()) for each in table.indexes if each.unique}
