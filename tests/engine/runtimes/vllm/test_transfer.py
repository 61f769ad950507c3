"""What each side of a transfer is told, and which connector takes it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from python_backend.engine.request import GenerationRequest
from python_backend.engine.runtimes.vllm.transfer import (
    FILES,
    NIXL,
    Transfers,
    choose_connector,
    prepare,
    transfer_arguments,
)
from python_backend.wire.errors import InflightError
from python_backend.wire.parameters import EngineParameters
from python_backend.wire.pools import Part

PROMPT = GenerationRequest([1, 2], 1, part=Part.CONTEXT)
POOL = EngineParameters("V1", "-", inflight_pool="prefill", inflight_kv_folder="/kv")


def test_who_computes_a_prompt_is_asked_for_another_and_its_word_goes_to_that_one() -> None:
    files = Transfers(FILES)
    asked = files.asked_with(PROMPT)["extra_args"]["kv_transfer_params"]
    assert (asked["do_remote_decode"], asked["do_remote_prefill"]) == (True, False)
    context = files.told({"do_remote_prefill": True, "transfer": "x"})
    assert context is not None
    answer = GenerationRequest([1, 2], 8, part=Part.GENERATION, context=context)
    told = {"kv_transfer_params": {"do_remote_prefill": True, "transfer": "x"}}
    assert files.asked_with(answer) == {"extra_args": told}
    assert Transfers(NIXL).asked_with(answer) == {}, "it was told of another way"


def test_whole_requests_and_words_that_nobody_understands_are_computed_here() -> None:
    for context in (b"", b"x", b"7", b"{}", b'{"connector": "files", "params": 7}'):
        request = GenerationRequest([1], 8, part=Part.GENERATION, context=context)
        assert Transfers(FILES).asked_with(request) == {}
    assert Transfers(FILES).told(None) is None


@pytest.mark.parametrize(
    ("wanted", "nixl", "device", "chosen"),
    [
        ("auto", True, "cuda", NIXL),
        ("auto", True, "cpu", FILES),
        ("auto", False, "cuda", FILES),
        ("files", True, "cuda", FILES),
        ("nixl", True, "cpu", NIXL),
    ],
)
def test_nixl_is_taken_where_it_is_installed_and_there_is_a_gpu(
    wanted: str, nixl: bool, device: str, chosen: str
) -> None:
    assert choose_connector(replace(POOL, inflight_kv_connector=wanted), nixl, device) == chosen
    assert choose_connector(replace(POOL, inflight_pool="both"), nixl, device) is None


def test_what_is_not_there_is_refused_by_name() -> None:
    with pytest.raises(InflightError, match="inflight_kv_connector is 'nixl'; allowed: auto or files"):
        choose_connector(replace(POOL, inflight_kv_connector="nixl"), False, "cuda")
    for folder in (None, "kv"):
        with pytest.raises(InflightError, match=r"inflight_kv_folder is .*; allowed: the absolute path"):
            choose_connector(replace(POOL, inflight_kv_folder=folder), False, "cpu")


@pytest.mark.parametrize(("pool", "role"), [("prefill", "kv_producer"), ("decode", "kv_consumer")])
def test_a_pool_is_a_role_of_vllms_and_what_cannot_be_had_is_computed(pool: str, role: str) -> None:
    parameters = replace(POOL, inflight_pool=pool)
    for connector in (FILES, NIXL):
        config = transfer_arguments(parameters, connector)["kv_transfer_config"]
        assert (config["kv_role"], config["kv_load_failure_policy"]) == (role, "recompute")
    assert transfer_arguments(parameters, None) == {}


def test_a_folder_that_others_can_open_is_refused(tmp_path: Path) -> None:
    parameters = replace(POOL, inflight_kv_folder=str(tmp_path / "kv"))
    prepare(parameters, FILES)
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700
    (tmp_path / "kv").chmod(0o755)
    with pytest.raises(InflightError, match=r"inflight_kv_folder .* a directory with mode 0700"):
        prepare(parameters, FILES)


def test_each_engine_has_a_port_of_its_own_for_nixls_handshake(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", "5600")
    prepare(POOL, NIXL)
    assert os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] == "5600", "the operator has said it"
    monkeypatch.delenv("VLLM_NIXL_SIDE_CHANNEL_PORT")
    prepare(POOL, NIXL)
    assert int(os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"]) > 1023
