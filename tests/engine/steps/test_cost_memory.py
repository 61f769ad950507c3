from __future__ import annotations

import json
from pathlib import Path

import pytest

from python_backend.costs.learners import StepLearner
from python_backend.costs.step_cost import LearnedStepCost, StepCost, StepShape
from python_backend.engine.scheduling.plan import StepPlan
from python_backend.engine.steps.cost_memory import CostMemory, files_of
from python_backend.engine.steps.meter import StepMeter

COST = StepCost(5.0, 1.2, 8.0, 0.05)
LEARNED = LearnedStepCost(COST, 400, 0.05)


def test_what_was_kept_is_recalled_for_the_same_release_on_the_same_kind_of_machine(tmp_path: Path) -> None:
    CostMemory(tmp_path, "release", "machine").keep(LEARNED)
    assert CostMemory(tmp_path, "release", "machine").recall() == LEARNED
    assert CostMemory(tmp_path, "other release", "machine").recall() is None
    assert CostMemory(tmp_path, "release", "other machine").recall() is None


def test_a_cost_is_kept_when_there_is_news_and_never_a_wrong_one(tmp_path: Path) -> None:
    memory = CostMemory(tmp_path, "release")
    for learned in (None, LearnedStepCost(COST, 40, 0.05), LearnedStepCost(COST, 4000, 0.6, is_frozen=True)):
        memory.keep(learned)
        assert memory.recall() is None
    memory.keep(LEARNED)
    memory.keep(LearnedStepCost(StepCost(1, 1, 1), 500, 0.05))
    assert memory.recall() == LEARNED
    memory.keep(LearnedStepCost(StepCost(1, 1, 1), 800, 0.05))
    assert memory.recall() == LearnedStepCost(StepCost(1, 1, 1), 800, 0.05)


@pytest.mark.parametrize(
    "text", ["", "nonsense", "[]", "{}", '{"cost": {"base_ms": -1}, "samples": 1, "error": 0}', '{"cost": 3}']
)
def test_a_file_that_says_nothing_is_as_if_there_were_none(tmp_path: Path, text: str) -> None:
    CostMemory(tmp_path, "release").keep(LEARNED)
    (file,) = tmp_path.iterdir()
    file.write_text(text)
    assert CostMemory(tmp_path, "release").recall() is None


def test_a_folder_that_cannot_be_written_stops_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    memory = CostMemory(tmp_path / "file", "release")
    memory.keep(LEARNED)
    assert memory.recall() is None


def test_a_release_is_known_by_its_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    before = files_of(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"other weights")
    assert json.dumps(files_of(tmp_path)) != json.dumps(before)
    assert files_of(tmp_path / "nowhere") == []


def test_a_recalled_cost_is_known_before_the_first_step() -> None:
    assert StepMeter(LEARNED).learned == LEARNED


def test_others_are_told_a_recalled_cost_only_when_the_steps_of_this_run_have_been_seen() -> None:
    meter = StepMeter(LEARNED)
    for number in range(255):
        meter.over(StepPlan(), number)
    assert meter.learned is not None
    assert meter.confirmed is None
    meter.over(StepPlan(), 255)
    assert meter.confirmed is meter.learned


def test_a_recalled_cost_that_is_wrong_is_left_within_a_few_hundred_steps() -> None:
    learner = StepLearner(LEARNED)
    slower = StepCost(15.0, 3.6, 24.0, 0.15)
    for number in range(300):
        shape = StepShape((number % 7 == 0) * 40, 1 + number % 12, 100 * (1 + number % 12))
        learner.observe(shape, slower.step_ms(shape))
    found = learner.learned
    assert found is not None
    shape = StepShape(0, 8, 800)
    assert found.cost.step_ms(shape) == pytest.approx(slower.step_ms(shape), rel=0.1)
    assert not found.is_frozen
