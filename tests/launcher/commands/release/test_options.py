"""Shares, durations, steps, tolerances and golden prompts, as people write them."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from launcher.commands.release import options
from launcher.commands.release.options import PlanOptions
from router.control.releases.plan import OnTimeout, Plan
from router.control.releases.records import GoldenPrompt

if TYPE_CHECKING:
    from pathlib import Path


@settings(deadline=None)
@given(some.integers(0, 10_000))
def test_a_share_is_read_as_a_number_and_in_percent(count: int) -> None:
    assert options.share(f"{count / 100}%") == pytest.approx(options.share(str(count / 10_000)))


@settings(deadline=None)
@given(some.text(max_size=12))
def test_any_text_is_a_share_or_refused(text: str) -> None:
    with suppress(ValueError):
        assert 0 <= options.share(text) <= 1


@pytest.mark.parametrize(
    "text", ["", "1", "=0.1", "x=0.1", "0=0.1", "1=2", "1=150%", "1=nan", "-1=0.1", "12345678901=1"]
)
def test_an_invalid_arm_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="for instance"):
        options.arm(text)


def test_an_arm_and_a_shadow_are_a_version_and_a_share() -> None:
    assert options.arm("12=10%") == (12, 0.1)
    shadow = options.shadow("3=0.05")
    assert shadow is not None
    assert (shadow.version, shadow.share) == (3, 0.05)
    assert options.shadow(None) is None
    with pytest.raises(ValueError, match="above 0"):
        options.shadow("3=0")


def test_durations_have_a_unit() -> None:
    assert [options.step_duration_s(text) for text in ("90s", "2m", "1h", "0.5s")] == [90, 120, 3600, 0.5]
    for text in ("90", "s", "1d", "-1s", "1e3s"):
        with pytest.raises(ValueError, match="is not a duration"):
            options.step_duration_s(text)


def test_a_plan_is_the_default_except_for_the_given_options() -> None:
    assert options.plan(PlanOptions()) == Plan()
    tolerances = ["error_rate=1%", "latency_ratio=2", "golden_failures=1"]
    plan = options.plan(PlanOptions("2%, 0.5,100%", 10, "5s", "2h", "rollback", tolerances))
    assert (plan.time_limit_s, plan.on_timeout) == (7200.0, OnTimeout.ROLL_BACK)
    assert (plan.weights, plan.min_requests, plan.min_duration_s) == ((0.02, 0.5, 1.0), 10, 5.0)
    tolerance = plan.tolerance
    assert (tolerance.error_rate, tolerance.latency_ratio, tolerance.golden_failures) == (0.01, 2.0, 1)
    assert tolerance.refusal_rate == Plan().tolerance.refusal_rate


def test_the_rate_of_mirrored_requests_is_a_number_a_second() -> None:
    assert options.plan(PlanOptions(mirror="0.5/s")).mirror_per_s == 0.5
    for wrong in ("2", "0/s", "-1/s", "101/s", "2/m", "x/s", "nan/s", ""):
        with pytest.raises(
            ValueError, match=r"--mirror .*; allowed: above 0/s, up to 100/s, for instance 1/s"
        ):
            options.plan(PlanOptions(mirror=wrong))


def test_the_rate_of_recorded_prompts_is_a_number_a_second() -> None:
    assert options.plan(PlanOptions(replay="0.5/s")).replay_per_s == 0.5
    with pytest.raises(ValueError, match=r"--replay '11/s'; allowed: above 0/s, up to 10/s"):
        options.plan(PlanOptions(replay="11/s"))


def test_a_canary_that_is_meant_to_be_slower_has_a_wider_latency_tolerance() -> None:
    assert options.plan(PlanOptions(accept_slower="2x")).tolerance.latency_ratio == 2.0
    wider = options.plan(PlanOptions(tolerances=["latency_ratio=3"], accept_slower="2"))
    assert wider.tolerance.latency_ratio == 3.0


def test_the_likeness_of_shadow_answers_is_part_of_the_plan() -> None:
    plan = options.plan(PlanOptions(min_likeness="90%", min_shadow_answers=20))
    assert (plan.min_likeness, plan.min_shadow_answers) == (0.9, 20)
    with pytest.raises(ValueError, match="allowed: above 0, up to 100%"):
        options.plan(PlanOptions(min_likeness="much"))


@pytest.mark.parametrize("text", ["twice", "0.5x", "x", "nan", "5000x"])
def test_an_invalid_accept_slower_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match="allowed: 1x to 1000x, for instance 2x"):
        options.accept_slower(text)


@pytest.mark.parametrize(
    "text",
    ["speed=1", "error_rate", "error_rate=2", "latency_ratio=0.5", "golden_failures=x", "length_ratio=nan"],
)
def test_an_invalid_tolerance_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(ValueError, match=r"allowed, with their defaults: error_rate=0\.002"):
        options.tolerance([text])


def test_golden_prompts_are_one_object_a_line(tmp_path: Path) -> None:
    lines: list[dict[str, Any]] = [
        {"prompt": "2+2?", "equals": "4"},
        {"prompt": "Capital of France?", "contains": "Paris", "max_tokens": 8},
        {"prompt": "A digit?", "matches": r"^\d$"},
        {"prompt": "Capital of France?", "similar": "It is Paris.", "min_likeness": 0.7},
        {"prompt": "A person, as JSON.", "schema": {"type": "object"}},
    ]
    file = tmp_path / "golden.jsonl"
    file.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    assert options.golden_prompts(file) == [GoldenPrompt(**line) for line in lines]
    assert options.golden_prompts(None) == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "line 2 is not JSON"),
        ("[]", "line 2 has no prompt"),
        ('{"contains": "x"}', "line 2 has no prompt"),
        ('{"prompt": "x"}', "line 2 does not say what answer is expected"),
        ('{"prompt": "x", "contains": 4}', "line 2 does not say what answer is expected"),
        ('{"prompt": "x", "like": "y"}', "line 2 has 'like'; allowed: contains, equals, matches"),
        ('{"prompt": "x", "matches": "("}', "line 2: matches is not a regular expression"),
        ('{"prompt": "x", "equals": "y", "max_tokens": 0}', "line 2: max_tokens is 0"),
        ('{"prompt": "x", "similar": "y", "min_likeness": 2}', "line 2: min_likeness is 2; allowed: above 0"),
        ('{"prompt": "x", "schema": {"type": "thing"}}', "line 2: schema: $.type: 'thing' is not valid"),
        ('{"prompt": "x", "schema": "y"}', "line 2: schema: a JSON schema has to be an object"),
    ],
)
def test_an_invalid_golden_prompt_is_refused_with_its_line(line: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "golden.jsonl"
    file.write_text('{"prompt": "x", "contains": "y"}\n' + line)
    with pytest.raises(ValueError, match=r"golden\.jsonl") as refused:
        options.golden_prompts(file)
    assert words in str(refused.value)


def test_a_file_without_prompts_or_with_too_many_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "golden.jsonl"
    for count in (0, options.MOST_GOLDEN_PROMPTS + 1):
        file.write_text('{"prompt": "x", "contains": "y"}\n' * count)
        with pytest.raises(ValueError, match=f"has {count} golden prompts; allowed: 1 to 200"):
            options.golden_prompts(file)
