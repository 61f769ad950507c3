"""What a request takes of the engine: its time in compute units, and its share of the cache.

Prices are whole microseconds of engine time (a thousandth of a compute unit), so that sums of them are exact
when everything has been released.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.admission.capacity import Capacity
    from router.admission.demand import Demand

# Where the cost is not known: a generated token is twice the work of one of the prompt.
_NOMINAL_PROMPT_US, _NOMINAL_TOKEN_US = 100.0, 200.0


@dataclass(frozen=True, slots=True)
class Prices:
    """Microseconds of one replica for each token of a prompt, generated token, and thousand tokens read.

    For batch models `row_us` is the price of a row and the others are 0. Prices that are not known serve to
    compare requests, not to predict anything.
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
        """Of so many generated tokens, each of which reads about so many tokens of context."""
        return int(tokens * (self.token_us + self.kilotoken_read_us * context_tokens / 1000))

    def whole_us(self, demand: Demand, expected: Expected) -> int:
        """What such requests take on average: it is for sums of many. Never nothing."""
        sequences, prompt, mean = demand.sequences, demand.prompt_tokens, expected.mean
        rows = demand.rows if demand.rows > sequences else sequences
        tokens = mean * sequences if mean * sequences < demand.max_tokens else demand.max_tokens
        context_tokens = prompt / (sequences or 1) + mean / 2
        token_us = self.token_us + self.kilotoken_read_us * context_tokens / 1000
        return int(self.prompt_token_us * prompt + self.row_us * rows) + int(tokens * token_us) or 1


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


# From so many answers on a tenant's own predict its next one better than those of all tenants.
_ENOUGH = 16.0
# When a histogram holds so many, the old ones count half from then on.
_FULL = 512.0
# The quantiles are computed again when there is so much more data.
_NEWS = 1 / 8
_OCTAVES = 20  # a million tokens
BINS = 4 * _OCTAVES


@dataclass(slots=True)  # not frozen: one is made for many a request
class Expected:
    """Tokens of one sequence: the median, the 90th percentile, and the mean, which counts in sums."""

    p50: int
    p90: int
    mean: int


# Before there are any answers; the limit of a request is often far more than it will use.
_PRIOR = Expected(200, 1000, 300)


def bin_of(tokens: int) -> int:
    """Four bins to each doubling; below 8 each length has its own."""
    if tokens < 8:
        return max(tokens, 0)
    octave = tokens.bit_length()
    return min(4 * octave - 8 + ((tokens >> (octave - 3)) & 3), BINS - 1)


def top_of(index: int) -> int:
    """The longest that falls into a bin."""
    if index < 8:
        return index
    octave, quarter = divmod(index + 8, 4)
    return ((5 + quarter) << (octave - 3)) - 1


# Of most lengths without a call.
SMALL_BINS = tuple(bin_of(tokens) for tokens in range(4096))

_MIDDLES = [(top_of(index) + top_of(index - 1) + 1) / 2 if index else 0.0 for index in range(BINS)]


class _Histogram:
    __slots__ = ("_bins", "_since", "expected", "total")

    def __init__(self) -> None:
        self._bins = [0.0] * BINS
        self.total = 0.0
        self.expected: Expected | None = None  # None: to be computed again
        self._since = 0

    def add(self, tokens: int) -> None:
        if self.total >= _FULL:
            self._bins = [count / 2 for count in self._bins]
            self.total = sum(self._bins)
        self._bins[SMALL_BINS[tokens] if 0 <= tokens < len(SMALL_BINS) else bin_of(tokens)] += 1.0
        self.total += 1.0
        self._since += 1
        if self._since > _NEWS * self.total:
            self.expected = None

    def expect(self) -> Expected:
        self.expected = self.expect_beyond(0)
        self._since = 0
        return self.expected

    def expect_beyond(self, generated: int) -> Expected:
        """Of answers at least so long; where there are none, a little longer than that."""
        first = bin_of(generated)
        total = sum(self._bins[first:]) if first else self.total
        if total < 1.0:
            return Expected(generated + generated // 4 + 1, 2 * generated + 1, generated + generated // 2 + 1)
        p50 = p90 = 0
        seen, summed, half, most = 0.0, 0.0, total / 2, 0.9 * total
        for index in range(first, BINS):
            count = self._bins[index]
            if not count:
                continue
            seen += count
            summed += count * _MIDDLES[index]
            if not p50 and seen >= half:
                p50 = max(top_of(index), 1)
            if not p90 and seen >= most:
                p90 = max(top_of(index), 1)
        return Expected(p50, p90, max(round(summed / total), 1))


class OutputLengths:
    """How long answers of one release are; bounded however many tenants there are.

    The limit that a client sets says much about what it expects, so answers are kept apart by its power of
    two. A tenant with too few answers is expected to be like all together.
    """

    def __init__(self, most_tenants: int = 2048) -> None:
        self._most_tenants = most_tenants
        self._of_tenant: OrderedDict[str, dict[int, _Histogram]] = OrderedDict()
        self._of_all: dict[int, _Histogram] = {}

    def __len__(self) -> int:
        return len(self._of_tenant)

    def learn(self, tenant: str, max_tokens: int, generated: int) -> None:
        """From one answer that has ended by itself or at its limit."""
        if max_tokens <= 0 or generated < 0:
            return
        size = max_tokens.bit_length()
        mine = self._of_tenant.get(tenant)
        if mine is None:
            mine = self._of_tenant[tenant] = {}
            if len(self._of_tenant) > self._most_tenants:
                self._of_tenant.popitem(last=False)
        else:
            self._of_tenant.move_to_end(tenant)
        for histograms in (mine, self._of_all):
            histogram = histograms.get(size)
            if histogram is None:
                histogram = histograms[size] = _Histogram()
            histogram.add(min(generated, max_tokens))

    def expect(self, tenant: str, max_tokens: int) -> Expected:
        """What an answer of this tenant with this limit will need."""
        histogram = self._find(tenant, max_tokens)
        found = _PRIOR if histogram is None else histogram.expected or histogram.expect()
        if found.p90 <= max_tokens:
            return found
        return Expected(min(found.p50, max_tokens), max_tokens, min(found.mean, max_tokens))

    def remaining(self, tenant: str, max_tokens: int, generated: int) -> Expected:
        """What is still to come of an answer that has so many tokens already."""
        left = max(max_tokens - generated, 0)
        histogram = self._find(tenant, max_tokens)
        if histogram is not None:
            whole = histogram.expect_beyond(generated)
        elif generated < _PRIOR.p50:
            whole = _PRIOR
        else:  # nothing is known: as much is to come as has come
            whole = Expected(2 * generated, max(4 * generated, _PRIOR.p90), 2 * generated)
        p50, p90, mean = (
            min(left, max(tokens - generated, 1)) for tokens in (whole.p50, whole.p90, whole.mean)
        )
        return Expected(p50, p90, mean)

    def _find(self, tenant: str, max_tokens: int) -> _Histogram | None:
        size = max_tokens.bit_length()
        mine = self._of_tenant.get(tenant)
        if mine is not None:
            histogram = mine.get(size)
            if histogram is not None and histogram.total >= _ENOUGH:
                return histogram
        histogram = self._of_all.get(size)
        return histogram if histogram is not None and histogram.total >= _ENOUGH else None
