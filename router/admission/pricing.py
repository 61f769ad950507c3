"""What a request takes of the engine: its time in compute units, and its part of the cache.

Prices are whole microseconds of engine time (a thousandth of a compute unit), so that sums of them come out
even when everything has been given back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.admission.demand import Capacity, Demand
    from router.admission.lengths import Expected

# Where the cost is not known: a generated token is twice the work of one of the prompt.
_NOMINAL_PROMPT_US, _NOMINAL_TOKEN_US = 100.0, 200.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Microseconds of one replica for each token of a prompt, generated token, and thousand tokens read.

    For models of fixed cost `row_us` is the price of a row and the others are 0. Prices that are not known
    serve to compare requests, not to foretell anything.
    """

    prompt_token_us: float
    token_us: float
    kilotoken_read_us: float = 0.0
    row_us: float = 0.0
    is_known: bool = False

    def prompt_us(self, demand: Demand) -> int:
        """What is certain when it begins."""
        rows = max(demand.rows, demand.sequences)
        return int(self.prompt_token_us * demand.prompt_tokens + self.row_us * rows)

    def tokens_us(self, tokens: int, context_tokens: float) -> int:
        """Of so many generated tokens, each of which reads about so many before it."""
        return int(tokens * (self.token_us + self.kilotoken_read_us * context_tokens / 1000))

    def whole_us(self, demand: Demand, expected: Expected) -> int:
        """As such requests take on the average: it is for sums of many. Never nothing."""
        tokens = min(expected.mean * demand.sequences, demand.max_tokens)
        return max(1, self.prompt_us(demand) + self.tokens_us(tokens, context_tokens(demand, expected.mean)))


def context_tokens(demand: Demand, tokens: int) -> float:
    """What each generated token of a sequence reads on the average."""
    return demand.prompt_tokens / max(demand.sequences, 1) + tokens / 2


def prices_of(capacity: Capacity, batch: float) -> Prices:
    """`batch`: sequences, or rows, that a step of one replica usually has when there is much to do."""
    if capacity.batch is not None:
        row_us = 1000 * (capacity.batch.base_ms / max(batch, 1.0) + capacity.batch.row_ms)
        return Prices(0.0, 0.0, row_us=row_us, is_known=True)
    if capacity.step is not None:
        step = capacity.step
        token_us = 1000 * (step.base_ms / max(batch, 1.0) + step.decode_sequence_ms)
        return Prices(1000 * step.prefill_token_ms, token_us, 1000 * step.kv_kilotoken_ms, is_known=True)
    return Prices(_NOMINAL_PROMPT_US, _NOMINAL_TOKEN_US, row_us=_NOMINAL_PROMPT_US)


def per_sequence(demand: Demand) -> int:
    """The most that one of its sequences may generate."""
    return -(-demand.max_tokens // max(demand.sequences, 1))


def kv_need(demand: Demand, tokens_each: int, capacity: Capacity) -> int:
    """Of the cache, in whole blocks, where each sequence comes to so many tokens.

    The sequences of one request share its prompt; each ends in a block of its own.
    """
    block = capacity.block_tokens or 1
    answers = tokens_each * demand.sequences
    tokens = demand.prompt_tokens + (answers if answers < demand.max_tokens else demand.max_tokens)
    return -(-tokens // block) * block + (demand.sequences - 1) * block


def least_kv(demand: Demand, capacity: Capacity) -> int:
    """Without which it cannot run at all."""
    return kv_need(demand, per_sequence(demand) if capacity.holds_whole_answers else 1, capacity)
