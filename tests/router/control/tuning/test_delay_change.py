"""What becomes of a model's config when its queue delay is changed."""

from __future__ import annotations

import pytest

from router.control.tuning.delay_change import UNTUNED, Queueing, apply, queueing_for, read_batched
from router.control.tuning.queue_delay import QueueDelay
from router.triton.control import ControlError
from tests.fakes.tuned_triton import GatheringControl, GatheringModel

OWN = Queueing(500, (64,), 1024)


def model() -> GatheringModel:
    made = GatheringModel(own_delay_us=500)
    made.config.dynamic_batching.default_queue_policy.max_queue_size = 1024
    return made


def test_models_without_dynamic_batching_and_decoupled_ones_are_not_tuned() -> None:
    assert read_batched(GatheringModel(gathers=False).config) is None
    assert read_batched(GatheringModel(is_decoupled=True).config) is None
    assert read_batched(GatheringModel(max_batch=1).config) is None
    found = read_batched(model().config)
    assert found is not None
    assert (found.queueing, found.own, found.is_tuned, found.is_on_gpu) == (OWN, OWN, False, False)


async def test_the_models_own_queueing_is_remembered_in_the_config_and_restored() -> None:
    made = model()
    control = GatheringControl({"m": made})
    for wanted in (Queueing(5000, (8, 64), 2048), Queueing(20_000, (16, 64), 2048)):
        await apply(control, "m", wanted)
        found = read_batched(made.config)
        assert found is not None
        assert (found.queueing, found.own, found.is_tuned) == (wanted, OWN, True)
    await apply(control, "m", OWN)
    found = read_batched(made.config)
    assert found is not None
    assert (found.queueing, found.is_tuned) == (OWN, False)
    await apply(control, "m", OWN)  # as it is: nothing is loaded
    assert made.loads == 3


def test_an_unreadable_note_in_the_config_is_ignored() -> None:
    made = model()
    for text in ("", "[]", '{"delay_us": "x"}', "{"):
        made.config.parameters[UNTUNED].string_value = text
        found = read_batched(made.config)
        assert found is not None
        assert not found.is_tuned


def test_queue_bounds_are_only_widened_and_restored_without_a_delay() -> None:
    found = read_batched(model().config)
    assert found is not None
    assert queueing_for(QueueDelay(5.0, 8, 256, ""), found) == Queueing(5000, (8, 64), 1024)
    assert queueing_for(QueueDelay(5.0, 64, 4096, ""), found) == Queueing(5000, (64,), 4096)
    assert queueing_for(QueueDelay(5.0, 0, 0, ""), found) == Queueing(5000, (64,), 1024)
    assert queueing_for(QueueDelay(0.0, 0, 256, ""), found) == Queueing(0, (64,), 1024)
    assert queueing_for(QueueDelay(0.5, 8, 256, ""), found) == OWN


async def test_a_model_that_no_longer_batches_is_left_alone() -> None:
    made = GatheringModel(gathers=False)
    with pytest.raises(ControlError, match="no longer has dynamic batching"):
        await apply(GatheringControl({"m": made}), "m", OWN)
    assert made.loads == 0
