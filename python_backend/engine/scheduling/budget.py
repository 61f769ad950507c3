"""How much one step may hold, so that those who wait for their next token get it in time.

A step takes as long as its prompts' tokens and its sequences say. Prompts get what the sequences leave of the
time that the tightest objective allows; and no more sequences join than that time is enough for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from python_backend.costs.step_cost import StepCost

# The rest of the time is for steps that take longer than others of their kind.
SHARE = 0.9
# Prompts go on whatever the objective says, by so many tokens in each step; by fewer where those would take
# more than this share of what those that decode take, as on a machine without a GPU.
LEAST_STEP_TOKENS = 64
LEAST_SHARE = 0.25
FEWEST_TOKENS = 16
# A smaller batch would cost more answers than it could speed up, for every step has its fixed cost: less than
# an eighth of all, or where more than a fifth of the time would be that cost.
LEAST_BATCH_SHARE = 8
LEAST_TIMES_BASE = 4.0


# Attention of a few rows of a long context keeps a GPU as busy as that of thousands where they are a multiple
# of this; with fewer than `LEAST_STEP_TOKENS` it only reads the context.
LONG_CHUNK_TOKENS = 512
# A fourth of a step is for short prompts, where long ones would take all of it.
PART_FOR_SHORT = 4


@dataclass(frozen=True, slots=True)
class StepLimits:
    """`max_step_tokens` counts both the tokens of prompts and one for each sequence that has its prompt."""

    max_batch_size: int
    max_step_tokens: int


def step_limits(
    most: StepLimits,
    cost: StepCost | None,
    target_ms: float | None,
    running: int,
    kv_tokens: int,
    share: float = SHARE,
) -> StepLimits:
    """What keeps steps within `target_ms`, and never more than `most`.

    `running` sequences wait for their next token, and read `kv_tokens` cached ones for it. While there are
    none, a prompt keeps nobody waiting. Steps are planned for `share` of the time.
    """
    if cost is None or target_ms is None:
        return most
    allowed_ms = share * target_ms
    for_decoding_ms = _decoding_ms(cost, target_ms, share)
    batch = batch_within(most, cost, for_decoding_ms, kv_tokens / running if running else 0.0)
    if not running:
        return StepLimits(batch, most.max_step_tokens)
    decode_ms = cost.base_ms + cost.decode_sequence_ms * running + cost.kv_kilotoken_ms * kv_tokens / 1000
    prompt = _tokens_in(allowed_ms - decode_ms, cost.prefill_token_ms, most.max_step_tokens)
    quick = _tokens_in(LEAST_SHARE * decode_ms, cost.prefill_token_ms, most.max_step_tokens)
    least = min(LEAST_STEP_TOKENS, max(FEWEST_TOKENS, quick))
    tokens = max(running + max(prompt, least), batch)
    return StepLimits(batch, min(tokens, most.max_step_tokens))


def _decoding_ms(cost: StepCost, target_ms: float, share: float) -> float:
    """What may be left to those that decode; where prompts are slow, the least of one fits in beside them."""
    least_ms = FEWEST_TOKENS * cost.prefill_token_ms
    if least_ms <= (1.0 - SHARE) * target_ms:
        return share * target_ms
    return min(share * target_ms, max(target_ms - least_ms, target_ms / (1.0 + LEAST_SHARE)))


def batch_within(
    most: StepLimits,
    cost: StepCost,
    allowed_ms: float,
    mean_tokens: float,
    least_times_base: float = LEAST_TIMES_BASE,
) -> int:
    """How many sequences of so many cached tokens a step of that time holds; no fewer than are worth it."""
    sequence_ms = cost.decode_sequence_ms + cost.kv_kilotoken_ms * mean_tokens / 1000
    fitting = _tokens_in(allowed_ms - cost.base_ms, sequence_ms, most.max_batch_size)
    least = _tokens_in(least_times_base * cost.base_ms, sequence_ms, most.max_batch_size)
    return max(1, min(-(-most.max_batch_size // LEAST_BATCH_SHARE), least), fitting)


def _tokens_in(time_ms: float, token_ms: float, most: int) -> int:
    """How many fit into the time, up to `most`; tokens may cost nothing."""
    if time_ms <= 0.0:
        return 0
    return most if time_ms >= token_ms * most else int(time_ms / token_ms)


# More than may join are kept, up to the objective itself: whoever runs is not paused for a little.
_KEPT_TIMES = 1.0 / SHARE


def most_running(
    most: StepLimits, cost: StepCost, target_ms: float, running: int, kv_tokens: int, share: float = SHARE
) -> int:
    """Beyond so many, those that run miss the objective, and some are to be paused."""
    allowed_ms = min(_KEPT_TIMES * _decoding_ms(cost, target_ms, share), target_ms)
    return batch_within(most, cost, allowed_ms, kv_tokens / running if running else 0.0)


def part_for_short(max_step_tokens: int) -> int:
    """What a long prompt leaves of a step to prompts that are no longer than this."""
    return max_step_tokens // PART_FOR_SHORT


def times_as_long(context: int, even_context: int | None) -> float:
    """A prompt's token behind that many takes as long as so many behind few, `even_context` or less."""
    return 1.0 if even_context is None else max(1.0, context / even_context)


def handed_out(
    lacking: int, left: int, max_step_tokens: int, has_shorter: Callable[[], bool], times: float = 1.0
) -> int:
    """How many of its lacking tokens, each of which counts so many times, a prompt gets of what is left.

    One that would take all of it leaves a part to shorter ones behind it: they would wait for the whole of
    it otherwise, step after step. Whether there are any is asked only where it matters.
    """
    if left <= 0:
        return 0
    if lacking * times <= left:
        return lacking
    if has_shorter():
        left -= part_for_short(max_step_tokens)
    if times == 1.0:
        return max(0, min(lacking, left))
    count = int(left / times)
    if count > LONG_CHUNK_TOKENS:
        count -= count % LONG_CHUNK_TOKENS
    return max(0, min(lacking, left, max(count, LEAST_STEP_TOKENS)))
