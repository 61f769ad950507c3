"""What each kind of model is asked, by the contract."""

from __future__ import annotations

import pytest

from python_backend.wire.tensors import CONTRACTS
from router.control.health.pings import one_token, pings_of
from router.core.manifest import Kind, Manifest

STEPS = ("preprocessing", "tensorrt_llm", "postprocessing")
TEXT = Manifest("m", 1, Kind.TEXT, (*STEPS, "ensemble"), engine="tensorrt_llm")
RELEASE = Manifest("m", 2, Kind.TEXT, (*(f"m.2.{s}" for s in STEPS), "m.2"), engine="m.2.tensorrt_llm")
EMBEDDINGS = Manifest("e", 1, Kind.EMBEDDINGS, ("embeddings",))


@pytest.mark.parametrize("manifest", [TEXT, RELEASE])
def test_each_step_of_a_pipeline_is_pinged_under_its_own_name(manifest: Manifest) -> None:
    pings = pings_of(manifest)
    assert list(pings) == list(manifest.members[:-1])
    assert [ping.request.model_name for ping in pings.values()] == list(manifest.members[:-1])


@pytest.mark.parametrize("manifest", [TEXT, EMBEDDINGS])
def test_a_ping_has_every_required_input(manifest: Manifest) -> None:
    for model, ping in pings_of(manifest).items():
        contract = CONTRACTS[model]
        sent = {tensor.name for tensor in ping.request.inputs}
        assert sent <= {tensor.name for tensor in contract.inputs}
        assert {tensor.name for tensor in contract.inputs if not tensor.optional} <= sent
        assert len(ping.request.raw_input_contents) == len(sent)


def test_the_ping_to_postprocessing_has_no_request_id() -> None:
    assert pings_of(TEXT)["postprocessing"].request.id == ""


def test_a_users_own_model_is_not_pinged() -> None:
    assert pings_of(Manifest("t", 1, Kind.TENSORS, ("t.1",))) == {}


def test_a_one_token_probe_goes_through_the_whole_pipeline() -> None:
    request = one_token(RELEASE, 7).request
    assert request.model_name == "m.2"
    assert request.id == "probe-7"
    assert request.parameters["inflight_tier"].string_param == "interactive"
