"""Keeps the stream decoders of all answers in flight, and frees them when an answer ends or is abandoned."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NamedTuple

from python_backend.text.stream_decoder import StreamDecoder
from python_backend.text.tokenizer import Tokenizer


class _Stream(NamedTuple):
    decoder: StreamDecoder
    last_used_s: float = 0.0
    next_turn: int = 0


class TextLost(Exception):
    """Ids are missing before those that came: the text would have a gap."""


class ShownToken(NamedTuple):
    """The text that a token completed, and its bytes, followed by those of others."""

    text: str
    is_hidden: bool
    pieces: list[bytes]


class StreamTable:
    """Decoders by request id and beam, in the order of their last use.

    Whether an answer shows special tokens is asked with its first ids. One that never gets its last chunk
    (its engine died, say) leaves its decoder behind. Those unused for longer than `idle_timeout_s` go at the
    next call; beyond `max_streams` the least recently used goes.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        idle_timeout_s: float = 300.0,
        max_streams: int = 100_000,
    ) -> None:
        if max_streams < 1:
            raise ValueError(f"max_streams must be at least 1, not {max_streams}")
        if idle_timeout_s <= 0:
            raise ValueError(f"idle_timeout_s must be above 0, not {idle_timeout_s}")
        tokenizer.pieces(skip_special_tokens)  # refuses now, not with the first answer
        self._tokenizer = tokenizer
        self._skip_special_tokens = skip_special_tokens
        self._idle_timeout_s = idle_timeout_s
        self._max_streams = max_streams
        self._streams: OrderedDict[tuple[str, int], _Stream] = OrderedDict()

    def __len__(self) -> int:
        return len(self._streams)

    def feed(
        self,
        request_id: str,
        beam: int,
        ids: Sequence[int],
        is_last: bool,
        now_s: float,
        shows_special: Callable[[], bool] | None = None,
        turns: tuple[int, int] | None = None,
    ) -> str:
        """The text that `ids` add to the answer; `now_s` never goes back.

        An empty request id names nobody: its ids are decoded as a text of their own. Where the sender
        counts, from 0, `turns` are that of these ids and of the next: raises TextLost where one was missed.
        """
        stream = self._take(request_id, beam, now_s, shows_special)
        if turns is not None:
            if turns[0] != stream.next_turn:
                raise TextLost
            stream = stream._replace(next_turn=turns[1])
        text = stream.decoder.push(ids)
        self._put_back(stream, request_id, beam, is_last, now_s)
        return text

    def feed_each(
        self,
        request_id: str,
        beam: int,
        rows: Sequence[Sequence[int]],
        is_last: bool,
        now_s: float,
        shows_special: Callable[[], bool] | None = None,
    ) -> list[ShownToken]:
        """As `feed`, token by token: in each row the one that came, then others that might have."""
        stream = self._take(request_id, beam, now_s, shows_special)
        decoder, found = stream.decoder, []
        for row in rows:
            pieces = [decoder.bytes_of(token_id) for token_id in row]
            found.append(ShownToken(decoder.push(row[:1]), decoder.hides(row[0]), pieces))
        self._put_back(stream, request_id, beam, is_last, now_s)
        return found

    def _take(
        self, request_id: str, beam: int, now_s: float, shows_special: Callable[[], bool] | None
    ) -> _Stream:
        self.expire(now_s)
        stream = self._streams.pop((request_id, beam), None)
        if stream is not None:
            return stream
        skips = self._skip_special_tokens and not (shows_special is not None and shows_special())
        return _Stream(StreamDecoder(self._tokenizer, skips))

    def _put_back(self, stream: _Stream, request_id: str, beam: int, is_last: bool, now_s: float) -> None:
        if is_last or not request_id:
            return
        self._streams[request_id, beam] = stream._replace(last_used_s=now_s)
        if len(self._streams) > self._max_streams:
            self._streams.popitem(last=False)

    def expire(self, now_s: float) -> None:
        """Drop the decoders that nobody has used for longer than the idle timeout."""
        while self._streams:
            oldest = next(iter(self._streams.values()))
            if now_s - oldest.last_used_s <= self._idle_timeout_s:
                return
            self._streams.popitem(last=False)
