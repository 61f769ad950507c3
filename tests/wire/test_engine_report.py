from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.costs.step_cost import LearnedStepCost, StepCost
from python_backend.wire.engine_report import EngineReport, read_report

NUMBERS = st.floats(0, 1e6)
COSTS = st.builds(StepCost, NUMBERS, NUMBERS, NUMBERS, NUMBERS)
COUNTS = st.integers(0, 2**62)
COUNTED = (
    *("max_batch_size", "max_step_tokens", "most_batch_size", "most_step_tokens", "total_blocks"),
    *("used_blocks", "tokens_per_block", "active", "waiting", "step_count", "busy_ns"),
)
REPORTS = st.builds(
    EngineReport,
    **dict.fromkeys(COUNTED, COUNTS),
    holds_whole_answers=st.booleans(),
    inter_token_ms=st.dictionaries(st.sampled_from(["interactive", "standard", "batch"]), NUMBERS),
    learned=st.none() | st.builds(LearnedStepCost, COSTS, COUNTS, NUMBERS, st.booleans()),
)
REPORT = EngineReport(
    8, 512, 8, 512, 100, 4, 16, 2, 0, True, learned=LearnedStepCost(StepCost(1, 2, 3), 40, 0.1)
)


@given(REPORTS)
def test_a_written_engine_report_is_read_back(report: EngineReport) -> None:
    assert read_report(report.to_text()) == report


def test_unknown_fields_of_a_later_engines_report_are_ignored() -> None:
    value: dict[str, Any] = json.loads(REPORT.to_text()) | {"mood": "fine"}
    value["learned"]["mood"] = value["learned"]["cost"]["mood"] = 1
    assert read_report(json.dumps(value)) == REPORT


@pytest.mark.parametrize("text", ["", "[]", "7", "{}", "null", '{"max_batch_size": 1}', "[" * 100_000])
def test_a_text_that_is_not_an_engine_report_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not an engine report|Expecting value"):
        read_report(text)


@pytest.mark.parametrize("learned", [[], 5, {}, {"cost": 3}, {"cost": {}, "samples": 1, "error": 0}])
def test_an_invalid_cost_is_refused(learned: object) -> None:
    value = json.loads(REPORT.to_text()) | {"learned": learned}
    with pytest.raises(ValueError, match="not an engine report"):
        read_report(json.dumps(value))
