"""What `inflight triton` tells `inflight router`, by a file."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.commands.deployment.model_facts import (
    FACTS_FILE,
    document_of,
    parse_facts,
    read_facts,
    write_facts,
)
from launcher.settings import SettingsError
from launcher.stack.router_process import Served
from router.core.manifest import FileMark
from tests.in_memory import folder_in_memory

TEXTS = st.dictionaries(st.text(max_size=10), st.text(max_size=20), max_size=4)
TABLES = st.lists(TEXTS, max_size=3).map(tuple)


@settings(deadline=None)
@given(models=TABLES, embedders=TABLES, ports=st.lists(st.integers(1, 65535), max_size=3).map(tuple))
def test_written_model_facts_are_read_back(
    models: tuple[dict[str, str], ...],
    embedders: tuple[dict[str, str], ...],
    ports: tuple[int, ...],
) -> None:
    with folder_in_memory() as state:
        write_facts(state, Served(models, embedders, ports))
        assert read_facts(state) == Served(models, embedders, ports)


def test_model_facts_are_for_the_owner_alone_and_never_half_written(tmp_path: Path) -> None:
    path = write_facts(tmp_path / "state", Served(({"name": "a"},)))
    write_facts(tmp_path / "state", Served(({"name": "b"},)))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in path.parent.iterdir()] == [FACTS_FILE]
    assert read_facts(tmp_path / "state") == Served(({"name": "b"},))


OF_0_7_0 = '{"format": 1, "models": [{"name": "a", "checkpoint_dir": "/data/a"}], "embedders": []}'
OF_A_LATER_VERSION = (
    '{"format": 1, "models": [{"name": "a"}], "embedders": [], "ports": [], "more": {"x": 1}}'
)


@pytest.mark.parametrize(
    ("text", "name"), [(OF_0_7_0, "a"), (OF_A_LATER_VERSION, "a")], ids=["older", "newer"]
)
def test_a_router_reads_what_tritons_of_other_versions_wrote(text: str, name: str, tmp_path: Path) -> None:
    """While they are upgraded one by one."""
    (tmp_path / FACTS_FILE).write_text(text)
    found = read_facts(tmp_path)
    assert found is not None
    assert [model["name"] for model in found.models] == [name]


def test_files_of_what_is_served_are_told_where_no_disk_is_shared() -> None:
    told, marks = Served(({"name": "a"},)), [FileMark("/data/a/tokenizer.json", 2, "0" * 64)]
    assert parse_facts(document_of(told, marks), "the store") == (told, tuple(marks))
    assert parse_facts(document_of(told), "the store") == (told, ())


def test_how_large_the_weights_are_is_told_and_makes_nothing_else_of_what_is_served() -> None:
    small, large = Served(({"name": "a"},)), Served(({"name": "a"},), weights_bytes=16 * 10**9)
    assert parse_facts(document_of(large), "the store")[0].weights_bytes == 16 * 10**9
    assert small == large
    with pytest.raises(SettingsError, match="weights_bytes is not a number"):
        parse_facts(document_of(large).replace("16000000000", '"many"'), "the store")


def test_a_failed_write_keeps_the_former_facts(tmp_path: Path) -> None:
    write_facts(tmp_path, Served(({"name": "a"},)))
    with pytest.raises(TypeError):
        write_facts(tmp_path, Served(({"name": object()},)))
    assert read_facts(tmp_path) == Served(({"name": "a"},))
    assert [each.name for each in tmp_path.iterdir()] == [FACTS_FILE]


def test_before_the_first_write_there_are_no_facts(tmp_path: Path) -> None:
    assert read_facts(tmp_path) is None
    assert read_facts(tmp_path / "not-there") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cheese", "is not what `inflight triton` writes"),
        ('{"format": 2}', "was written by another version of inflight"),
        ("[]", "was written by another version of inflight"),
        ('{"format": 1, "models": {}}', "models is not a list of tables"),
        ('{"format": 1, "models": [], "embedders": [], "ports": ["1"]}', "ports is not a list of numbers"),
        ('{"format": 1, "models": [], "embedders": [1]}', "embedders is not a list of tables"),
    ],
)
def test_a_file_that_is_not_model_facts_is_refused(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / FACTS_FILE).write_text(text)
    with pytest.raises(SettingsError, match=message):
        read_facts(tmp_path)
