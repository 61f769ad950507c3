"""How long answers will be: learned per tenant from those that have ended."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

# Where nobody has been seen yet; the limit of a request is often far more than it will use.
_PRIOR_P50, _PRIOR_P90, _PRIOR_MEAN = 200, 1000, 300
# So many answers say more about the next one than those of everybody together do.
_ENOUGH = 16.0
# When a histogram holds so many, the old half counts half from then on.
_FULL = 512.0
# The quantiles are worked out again when there is so much more to go by.
_NEWS = 1 / 8
_OCTAVES = 20  # a million tokens
BINS = 4 * _OCTAVES


@dataclass(frozen=True, slots=True)
class Expected:
    """Tokens of one sequence: what half of them stay within, what nine of ten do, and what counts in sums."""

    p50: int
    p90: int
    mean: int

    def within(self, most: int) -> Expected:
        if self.p90 <= most:
            return self
        return Expected(min(self.p50, most), most, min(self.mean, most))


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


_MIDDLES = [(top_of(index) + top_of(index - 1) + 1) / 2 if index else 0.0 for index in range(BINS)]


class _Histogram:
    __slots__ = ("_bins", "_expected", "_since", "total")

    def __init__(self) -> None:
        self._bins = [0.0] * BINS
        self.total = 0.0
        self._expected: Expected | None = None
        self._since = 0

    def add(self, tokens: int) -> None:
        if self.total >= _FULL:
            self._bins = [count / 2 for count in self._bins]
            self.total = sum(self._bins)
        self._bins[bin_of(tokens)] += 1.0
        self.total += 1.0
        self._since += 1
        if self._since > _NEWS * self.total:
            self._expected = None

    def expect(self) -> Expected:
        if self._expected is None:
            self._expected = self.expect_beyond(0)
            self._since = 0
        return self._expected

    def expect_beyond(self, generated: int) -> Expected:
        """Of those that are at least so long; where there are none, a little longer than that."""
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
    """For one release; bounded however many tenants there are.

    The limit that a client sets says much about what it expects, so answers are kept apart by its power of
    two. A tenant with too few answers is taken for one of all.
    """

    def __init__(self, most_tenants: int = 2048) -> None:
        self._most_tenants = most_tenants
        self._of_tenant: OrderedDict[str, dict[int, _Histogram]] = OrderedDict()
        self._of_all: dict[int, _Histogram] = {}

    def __len__(self) -> int:
        return len(self._of_tenant)

    def learn(self, tenant: str, max_tokens: int, generated: int) -> None:
        """One answer that has ended by itself or at its limit."""
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
        if histogram is None:
            return Expected(_PRIOR_P50, _PRIOR_P90, _PRIOR_MEAN).within(max_tokens)
        return histogram.expect().within(max_tokens)

    def remaining(self, tenant: str, max_tokens: int, generated: int) -> Expected:
        """What is still to come of an answer that has so many tokens already."""
        left = max(max_tokens - generated, 0)
        histogram = self._find(tenant, max_tokens)
        if histogram is not None:
            whole = histogram.expect_beyond(generated)
        elif generated < _PRIOR_P50:
            whole = Expected(_PRIOR_P50, _PRIOR_P90, _PRIOR_MEAN)
        else:  # nothing is known: it has about as much before it as behind it
            whole = Expected(2 * generated, max(4 * generated, _PRIOR_P90), 2 * generated)
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
