"""A name that clients ask as any model: a small model's answer where it passes, else a large one's."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from router.cascade.checks import Checks

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.settings import CascadeSettings

_PLACE = re.compile(r"\{(prompt|answer)\}")


@dataclass(frozen=True, slots=True)
class Cascade:
    name: str
    small: str
    large: str
    checks: Checks
    schema: dict[str, Any] | bool = True
    judge: str = ""
    judge_prompt: str = ""

    def question(self, prompts: Sequence[str], texts: Sequence[str]) -> str:
        """What the judge is asked; what client and model wrote is put in as it is, and not read again."""
        said = {"prompt": "\n\n".join(prompts), "answer": "\n\n".join(texts)}
        return _PLACE.sub(lambda found: said[found[1]], self.judge_prompt)


def cascade_of(settings: CascadeSettings) -> Cascade:
    return Cascade(
        settings.name,
        settings.small,
        settings.large,
        Checks(settings.least_log_prob, bool(settings.schema), bool(settings.judge)),
        msgspec.json.decode(settings.schema) if settings.schema else True,
        settings.judge,
        settings.judge_prompt,
    )
