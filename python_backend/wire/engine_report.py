"""What an engine tells who asks it: what it holds, what it may take, and what its steps cost."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from python_backend.costs.step_cost import LearnedStepCost, StepCost
from python_backend.wire.pools import BOTH

# The request parameter that asks, and the output with the answer.
REPORT = "inflight_report"
ENGINE_REPORT = "engine_report"
# The request parameter by which a router says who it is: it asks for reports for as long as it lives.
ROUTER = "inflight_router"
# The request parameter that sets limits and objectives.
CONFIGURE = "inflight_configure"
# The request parameter that names the LoRA adapter to answer with, and the one that has it unloaded.
ADAPTER = "inflight_adapter"
DROP_ADAPTER = "inflight_drop_adapter"


@dataclass(frozen=True, slots=True)
class EngineReport:
    """The engine a moment ago; the counts are over its life, which begins anew when it is started again.

    `max_batch_size` and `max_step_tokens` hold now; without objectives they are the `most_` ones.
    `inter_token_ms` has the tiers, by their labels, that have an objective. `waiting` sequences have no place
    yet, `active` ones are all there are. With `holds_whole_answers` one takes the blocks of its longest
    answer when it begins. `learned` is None before enough steps were seen. One that `can_pause` pauses
    sequences of tenants above their part for those of others; so many of those that wait are `paused` now.
    A request may have `max_images`, 0 where it reads text alone, of up to `image_tokens` each.
    `pool` is what it is there for: prompts, answers or both. Of layers with a window a sequence takes
    `window_blocks` blocks more for as many tokens as a block has, for no more than `window_tokens` of them;
    without `keeps_all` it takes no others.
    """

    max_batch_size: int
    max_step_tokens: int
    most_batch_size: int
    most_step_tokens: int
    total_blocks: int
    used_blocks: int
    tokens_per_block: int
    active: int
    waiting: int
    holds_whole_answers: bool
    step_count: int = 0
    busy_ns: int = 0
    inter_token_ms: Mapping[str, float] = field(default_factory=dict)
    learned: LearnedStepCost | None = None
    paused: int = 0
    can_pause: bool = False
    max_images: int = 0
    image_tokens: int = 0
    pool: str = BOTH
    window_tokens: int = 0
    window_blocks: int = 0
    keeps_all: bool = True

    def to_text(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))


def read_report(text: str) -> EngineReport:
    """What is unknown in it is passed over; raises ValueError for anything that is no report."""
    try:
        values = _known(EngineReport, json.loads(text))
        learned = values.get("learned")
        if learned is not None:
            learned = _known(LearnedStepCost, learned)
            cost = StepCost(**_known(StepCost, learned.pop("cost")))
            values["learned"] = LearnedStepCost(cost=cost, **learned)
        return EngineReport(**values)
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"not an engine report: {error}") from error


def _known(kind: Any, values: dict[str, Any]) -> dict[str, Any]:
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in values.items() if name in names}
