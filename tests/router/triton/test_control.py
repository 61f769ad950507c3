"""Loading, unloading and reviving, by whoever has the secret."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from router.triton.control import ControlError, ModelState, TritonControl
from tests.fakes.controlled_triton import SECRET, ControlledTriton, FakeModel


@pytest.fixture
async def triton() -> AsyncIterator[ControlledTriton]:
    fake = await ControlledTriton({"a": FakeModel(), "b": FakeModel(loaded=False)}).start()
    yield fake
    await fake.stop()


@pytest.fixture
async def control(triton: ControlledTriton) -> AsyncIterator[TritonControl]:
    control = TritonControl(triton.url, SECRET)
    yield control
    await control.close()


async def test_a_model_is_loaded_and_unloaded(triton: ControlledTriton, control: TritonControl) -> None:
    await control.load("b")
    assert triton.models["b"].loaded
    await control.unload("b")
    assert not triton.models["b"].loaded


async def test_the_index_lists_every_model_and_counts_a_ready_version(control: TritonControl) -> None:
    assert await control.index() == {"a": ModelState("READY"), "b": ModelState("")}
    assert [state.is_ready for state in (await control.index()).values()] == [True, False]


async def test_a_refusal_carries_tritons_message(triton: ControlledTriton, control: TritonControl) -> None:
    triton.models["b"].load_error = "failed to load 'b': no version"
    with pytest.raises(ControlError, match="failed to load 'b': no version"):
        await control.load("b")


async def test_a_model_that_is_not_loaded_is_not_revived(
    triton: ControlledTriton, control: TritonControl
) -> None:
    with pytest.raises(ControlError):
        await control.revive("b")
    assert triton.models["b"].loads == 0


async def test_each_revival_changes_the_epoch_and_nothing_else(
    triton: ControlledTriton, control: TritonControl
) -> None:
    model = triton.models["a"]
    model.dead = True
    assert await control.epoch("a") == ""
    await control.revive("a")
    assert not model.dead
    first = await control.epoch("a")
    assert first
    config = await control.config("a")
    assert (config.name, config.max_batch_size) == ("a", 64)
    await control.revive("a")
    assert await control.epoch("a") != first


async def test_a_server_is_alive_until_it_stops(triton: ControlledTriton, control: TritonControl) -> None:
    assert await control.is_alive()
    await triton.stop()
    assert not await control.is_alive()


async def test_without_the_secret_no_model_is_controlled(triton: ControlledTriton) -> None:
    control = TritonControl(triton.url, "")
    assert not control.can_control
    with pytest.raises(ControlError, match="restricted"):
        await control.load("b")
    await control.close()
