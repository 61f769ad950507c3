"""How `tensorrt_llm` tells `postprocessing` which stream a response belongs to, and when it ends.

Between the two steps of an ensemble only two tensors travel, and a request id that the client may have left
empty or used twice. The mark rides in the padding: one id beyond `sequence_length`, negative as all padding
is (the contract pads with -1), so whoever cuts at `sequence_length` never sees it. Engines that know
nothing of it send none.
"""

from __future__ import annotations

from typing import NamedTuple

LANES = 1 << 10
_STREAMS = 1 << 19  # with lane and flag this fills an INT32; far more than can be open at once


class StreamMark(NamedTuple):
    """`lane` is the sender's number, `stream` the sequence's in that lane."""

    lane: int
    stream: int
    is_last: bool

    def to_padding_id(self) -> int:
        number = self.lane * _STREAMS + self.stream % _STREAMS
        return -1 - 2 * number - self.is_last

    @classmethod
    def from_padding_id(cls, padding_id: int) -> StreamMark:
        number, is_last = divmod(-1 - padding_id, 2)
        lane, stream = divmod(number, _STREAMS)
        return cls(lane % LANES, stream, bool(is_last))
