"""Two made-up releases whose tokens take as long as a test says, on a clock that only they move."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from random import Random

import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.control.releases.rehearsal import COMPANION_TOKENS, SHAPES, RehearsalBroken, RehearsalStage
from router.core.generation import Delta, Failure, GenerationCall
from router.core.manifest import Kind, Manifest
from router.core.stages import EngineTimes
from router.triton.failures import TritonError
from tests.router.control.releases.values import manifest

STABLE, CANARY = manifest(1), manifest(2)
ALLOWED = 1.25


@dataclass
class Clock:
    now_s: float = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Timed:
    """A pipeline that takes its time; `errors` come in place of answers while there are any."""

    clock: Clock
    prefill_s: float = 1e-4  # for each character
    token_s: float = 0.01
    noise: Random = field(default_factory=lambda: Random(1))
    errors: list[Exception | None] = field(default_factory=list)
    calls: list[GenerationCall] = field(default_factory=list)
    companions: int = 0

    def generate(self, call: GenerationCall) -> TimedGeneration | Companion:
        if call.max_tokens == COMPANION_TOKENS:
            self.companions += 1
            return Companion()
        self.calls.append(call)
        return TimedGeneration(self, call, self.errors.pop(0) if self.errors else None)


class Companion:
    """Begins, and goes on for as long as it is read."""

    def __init__(self) -> None:
        self._has_begun = False

    def stop(self) -> None: ...

    def __aiter__(self) -> Companion:
        return self

    async def __anext__(self) -> Delta:
        if self._has_begun:
            await asyncio.Event().wait()
        self._has_begun = True
        return Delta("a", completion_tokens=1)


class TimedGeneration:
    def __init__(self, of: Timed, call: GenerationCall, error: Exception | None) -> None:
        self._of, self._call, self._error = of, call, error
        self._parts = 2

    def stop(self) -> None: ...

    def __aiter__(self) -> TimedGeneration:
        return self

    async def __anext__(self) -> Delta:
        of, tokens = self._of, self._call.max_tokens
        if self._error is not None:
            raise self._error
        if not self._parts:
            raise StopAsyncIteration
        self._parts -= 1
        if self._parts:
            of.clock.now_s += of.prefill_s * len(self._call.prompt) * of.noise.uniform(0.9, 1.1)
            return Delta("a", completion_tokens=1)
        decode_s = of.token_s * (tokens - 1) * of.noise.uniform(0.9, 1.1)
        of.clock.now_s += decode_s
        times = EngineTimes(0.0, 0.0, 0.0, decode_s)
        return Delta("b", completion_tokens=tokens - 1, finish="length", engine=times)


@dataclass
class Stage:
    clock: Clock = field(default_factory=Clock)
    stable: Timed = field(init=False)
    canary: Timed = field(init=False)

    def __post_init__(self) -> None:
        self.stable, self.canary = Timed(self.clock), Timed(self.clock, noise=Random(2))

    @property
    def rehearsal(self) -> RehearsalStage:
        return RehearsalStage(self._pipeline_of, self.clock)

    def _pipeline_of(self, of: Manifest) -> Timed:
        return self.canary if of is CANARY else self.stable


async def test_a_canary_that_is_as_fast_is_not_objected_to_after_a_few_pairs() -> None:
    stage = Stage()
    found = await stage.rehearsal.compare(CANARY, STABLE, ALLOWED)
    assert found.objection == ""
    assert len(found.first_token.pairs) == len(found.between_tokens.pairs) == 8
    assert found.line.startswith("before traffic: first token ")
    assert found.line.endswith(" times, 8 pairs")
    assert found.figures["between_tokens"]["ratio"] == pytest.approx(1.0, abs=0.2)


async def test_both_releases_get_the_same_prompts_alternately_and_with_the_lowest_priority() -> None:
    stage = Stage()
    await stage.rehearsal.compare(CANARY, STABLE, ALLOWED)
    prompts = [[call.prompt for call in each.calls] for each in (stage.canary, stage.stable)]
    assert prompts[0] == prompts[1]
    assert len(set(prompts[0])) == len(prompts[0]), "none is in a cache"
    assert len({len(prompt) for prompt in prompts[0]}) == len({shape.sentences for shape in SHAPES})
    rounds = len(SHAPES) + 8
    assert stage.canary.companions == stage.stable.companions == rounds, "the other one is as busy"
    assert {(call.tier, call.ignore_eos, call.tenant) for call in stage.stable.calls} == {
        ("batch", True, "inflight")
    }


async def test_a_canary_that_is_slower_between_tokens_is_refused_with_figures_and_what_to_do() -> None:
    stage = Stage()
    stage.canary.token_s *= 4.1
    found = await stage.rehearsal.compare(CANARY, STABLE, ALLOWED)
    assert re.fullmatch(
        r"between tokens 39\.\d ms against 9\.\d ms of smol@1 on the same 10 prompts \(4\.0 times\): "
        r"if that is intended, start the rollout again with --accept-slower 4\.2x",
        found.objection,
    )
    assert (await stage.rehearsal.compare(CANARY, STABLE, 4.2)).objection == ""


async def test_a_canary_that_reads_prompts_slowly_is_refused_for_its_first_token() -> None:
    stage = Stage()
    stage.canary.prefill_s *= 3
    found = await stage.rehearsal.compare(CANARY, STABLE, ALLOWED)
    assert found.objection.startswith("first token ")


async def test_a_rehearsal_ends_in_time_and_without_an_objection_where_little_was_measured() -> None:
    stage = Stage()
    stage.canary.token_s, stage.stable.token_s = 3.0, 0.75
    found = await stage.rehearsal.compare(CANARY, STABLE, ALLOWED)
    assert stage.clock.now_s < 200
    assert (len(found.first_token.pairs) < 8, found.objection) == (True, "")


@pytest.mark.parametrize("failure", [Failure.ENGINE, Failure.ENGINE_DIED])
async def test_a_canary_that_twice_fails_what_the_stable_release_answers_is_refused(failure: Failure) -> None:
    stage = Stage()
    broken = TritonError(ErrorKind.ENGINE_FAILED, "no", failure, "the step broke")
    stage.canary.errors = [None, broken, broken]
    found = await stage.rehearsal.compare(CANARY, STABLE, ALLOWED)
    assert found.objection == (
        "smol@2 failed to answer 2 prompts before it got traffic, which smol@1 answered: the step broke"
    )


@pytest.mark.parametrize("failure", [Failure.UNREACHABLE, Failure.NOT_LOADED, Failure.STUB_DEAD])
async def test_a_replica_that_is_not_there_says_nothing_about_how_fast_it_is(failure: Failure) -> None:
    stage = Stage()
    stage.canary.errors = [TritonError(ErrorKind.ENGINE_FAILED, "no", failure)]
    with pytest.raises(RehearsalBroken):
        await stage.rehearsal.compare(CANARY, STABLE, ALLOWED)


async def test_a_stable_release_that_does_not_answer_is_not_held_against_the_canary() -> None:
    stage = Stage()
    busy = InflightError(ErrorKind.OVERLOADED, "overloaded")
    stage.stable.errors = [*[None] * 6, busy]
    found = await stage.rehearsal.compare(CANARY, STABLE, ALLOWED)
    assert (found.objection, len(found.first_token.pairs)) == ("", 8)
    stage.stable.errors = [busy] * 100
    found = await stage.rehearsal.compare(CANARY, STABLE, ALLOWED)
    assert found.line == "before traffic: the comparison timed out"


async def test_a_canary_that_fails_where_the_stable_release_is_slow_too_is_not_refused() -> None:
    stage = Stage()
    stage.stable.token_s = 2.0
    stage.canary.errors = [TritonError(ErrorKind.OVERLOADED, "no", Failure.OVERLOADED)] * 100
    assert (await stage.rehearsal.compare(CANARY, STABLE, ALLOWED)).objection == ""


async def test_prompts_that_are_too_long_for_a_model_are_left_out() -> None:
    stage = Stage()
    too_long = TritonError(ErrorKind.CONTEXT_LENGTH_EXCEEDED, "too long", Failure.CALLER)
    stage.canary.errors = [too_long]
    found = await stage.rehearsal.compare(CANARY, STABLE, ALLOWED)
    assert (found.objection, len(found.first_token.pairs)) == ("", 8)


async def test_models_that_make_no_text_are_not_rehearsed() -> None:
    canary, stable = (manifest(version, kind=Kind.TENSORS) for version in (2, 1))
    assert (await Stage().rehearsal.compare(canary, stable, ALLOWED)).line == ""
