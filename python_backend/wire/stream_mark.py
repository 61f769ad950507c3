"""How `tensorrt_llm` tells `postprocessing` which stream a response belongs to, its turn, and when it ends.

Between the two steps of an ensemble only two tensors travel, and a request id that the client may have left
empty or used twice. The mark rides in the padding: one id beyond `sequence_length`, negative as all padding
is (the contract pads with -1), so whoever cuts at `sequence_length` never sees it. Engines that know
nothing of it send none.
"""

from __future__ import annotations

from typing import NamedTuple

LANES = 1 << 10
_PADDING = -1  # as the contract has it
_STREAMS = 1 << 16  # with lane, turn and flag this fits into an INT32; far more than can be open at once
_TURNS = 1 << 3


def following(turn: int) -> int:
    """The first response alone has 0: whoever sees another one first has missed that."""
    return turn % (_TURNS - 1) + 1


class StreamMark(NamedTuple):
    """`lane` is the sender's number, `stream` the sequence's in that lane, `turn` the response's in that."""

    lane: int
    stream: int
    turn: int = 0
    is_last: bool = False

    def to_padding_id(self) -> int:
        number = (self.lane * _STREAMS + self.stream % _STREAMS) * _TURNS + self.turn
        return _PADDING - 1 - 2 * number - self.is_last

    @classmethod
    def from_padding_id(cls, padding_id: int) -> StreamMark | None:
        """None for the padding of an engine that sends no marks."""
        if padding_id >= _PADDING:
            return None
        number, is_last = divmod(_PADDING - 1 - padding_id, 2)
        number, turn = divmod(number, _TURNS)
        lane, stream = divmod(number, _STREAMS)
        return cls(lane % LANES, stream, turn, bool(is_last))
