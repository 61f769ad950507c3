"""A rollout's golden prompts, whose answers are known, asked of one release."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from difflib import SequenceMatcher
from pathlib import Path
from typing import TYPE_CHECKING

from python_backend.wire.errors import InflightError
from router.control.releases.inspection import scrub
from router.control.releases.own_prompt import ask
from router.core.json_answers import fault_of_answer
from router.routing.chat_template import load_template

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from router.control.releases.own_prompt import Generates
    from router.control.releases.records import GoldenPrompt
    from router.core.manifest import Manifest
    from router.routing.chat_template import ChatTemplate

_TIMEOUT_S = 60.0
_SHOWN_CHARACTERS = 200
_COMPARED_CHARACTERS = 2000


@dataclass(frozen=True, slots=True)
class GoldenFailure:
    """`came` is the answer it gave instead, shortened, or why there was none."""

    prompt: str
    expected: str
    came: str

    def sentence(self) -> str:
        return f"the answer to {self.prompt!r} should {self.expected}, but is {self.came!r}"


class GoldenRunner:
    """`pipeline_of` finds what answers for a release; a prompt is put to it as a user's message."""

    def __init__(self, pipeline_of: Callable[[Manifest], Generates], timeout_s: float = _TIMEOUT_S) -> None:
        self._pipeline_of = pipeline_of
        self._timeout_s = timeout_s

    async def failures(self, manifest: Manifest, prompts: Sequence[GoldenPrompt]) -> list[GoldenFailure]:
        if not prompts:
            return []
        template = await asyncio.to_thread(load_template, Path(manifest.checkpoint_dir))
        pipeline = self._pipeline_of(manifest)
        found = [await self._ask(pipeline, template, each) for each in prompts]
        return [failure for failure in found if failure is not None]

    async def _ask(
        self, pipeline: Generates, template: ChatTemplate | None, golden: GoldenPrompt
    ) -> GoldenFailure | None:
        try:
            prompt = golden.prompt
            if template is not None:
                prompt = template.render([{"role": "user", "content": golden.prompt}])
            answer = await ask(
                pipeline, prompt, golden.max_tokens, self._timeout_s, add_special_tokens=template is None
            )
        except asyncio.TimeoutError:
            return _failure(golden, f"no answer within {self._timeout_s:g} s")
        except InflightError as error:
            return _failure(golden, scrub(error.message))
        return await asyncio.to_thread(_judge, golden, answer.text)


def _judge(golden: GoldenPrompt, text: str) -> GoldenFailure | None:
    return None if is_as_expected(golden, text) else _failure(golden, text)


def is_as_expected(golden: GoldenPrompt, text: str) -> bool:
    """All that is given must hold; surrounding whitespace is ignored."""
    answer = text.strip()
    if golden.equals and answer != golden.equals.strip():
        return False
    if golden.contains and golden.contains not in answer:
        return False
    if golden.similar and similarity(answer, golden.similar.strip()) < golden.min_likeness:
        return False
    if golden.schema is not None and fault_of_answer(answer, golden.schema) is not None:
        return False
    return not golden.matches or re.search(golden.matches, answer) is not None


def similarity(one: str, other: str) -> float:
    """0 to 1: how much of both texts is in common, in the same order; capitals and small letters are one."""
    texts = (one[:_COMPARED_CHARACTERS].casefold(), other[:_COMPARED_CHARACTERS].casefold())
    return SequenceMatcher(None, *texts, autojunk=False).ratio()


def _failure(golden: GoldenPrompt, came: str) -> GoldenFailure:
    wishes = {"equal": golden.equals, "contain": golden.contains, "match": golden.matches}
    expected = [f"{verb} {_short(text)!r}" for verb, text in wishes.items() if text]
    answer = came.strip()
    if golden.similar:
        likeness = similarity(answer, golden.similar.strip())
        wanted = f"{golden.min_likeness:.0%} like {_short(golden.similar)!r}"
        expected.append(f"be {wanted}, but is {likeness:.0%}")
    if golden.schema is not None:
        fault = fault_of_answer(answer, golden.schema)
        expected.append("match its JSON schema" + (f" ({_short(fault)})" if fault else ""))
    return GoldenFailure(_short(golden.prompt), " and ".join(expected), _short(answer))


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
