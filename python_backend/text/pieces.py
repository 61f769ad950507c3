"""What each token id adds to a text, as bytes, so that a text can be put together while its ids arrive."""

import codecs
import json
import re
from typing import Any

import tokenizers

# The decoders whose tokens add the same bytes wherever they stand, but for the first one of a text.
# The others (BPEDecoder, CTC) look at a token's neighbours; no model that generates text uses them.
_PIECEWISE = re.compile(r"(ByteLevel )?|WordPiece |((Replace|Metaspace) )*(ByteFallback )?(Fuse (Strip )?)?")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")
# Stands before a token to ask the decoder what that token adds in the middle of a text.
_NEIGHBOUR = "a"


def _each_byte_replaced(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeDecodeError)
    return "\ufffd" * (error.end - error.start), error.end


# ByteFallback writes one U+FFFD for each invalid byte, ByteLevel one for each broken character.
codecs.register_error("inflight.replace_each_byte", _each_byte_replaced)


class UnsupportedDecoder(ValueError):
    """The tokenizer's decoder cannot work on a stream."""


class Pieces(dict[int, bytes]):
    """Maps an id to the bytes it adds in the middle of a text, filled in as ids are met.

    Ids that are not shown (unknown ones; special ones when these are skipped) add nothing.
    """

    def __init__(self, backend: tokenizers.Tokenizer, skip_special_tokens: bool) -> None:
        super().__init__()
        stages = _stages(backend.decoder)
        kinds = [stage["type"] for stage in stages]
        if not _PIECEWISE.fullmatch("".join(f"{kind} " for kind in kinds)) or _strips_the_end(stages):
            raise UnsupportedDecoder(
                f"tokenizer.json: decoder {' + '.join(kinds)} cannot be streamed; allowed: ByteLevel, "
                "WordPiece, Metaspace, and Replace + ByteFallback + Fuse + Strip at the start"
            )
        self._backend = backend
        self._decoder = backend.decoder
        self._neighbour_length = len(self._decode([_NEIGHBOUR]))
        self._byte_level = "ByteLevel" in kinds
        self._byte_fallback = "ByteFallback" in kinds
        self._hidden = {
            token.content
            for token in backend.get_added_tokens_decoder().values()
            if skip_special_tokens and token.special
        }
        self.first_differs = not kinds or "Metaspace" in kinds or "WordPiece" in kinds
        self.strip_char, self.strip_count = " ", 0
        if "Strip" in kinds:
            self.strip_char, self.strip_count = stages[-1]["content"], stages[-1]["start"]
        self.on_invalid = "inflight.replace_each_byte" if self._byte_fallback else "replace"

    def __missing__(self, token_id: int) -> bytes:
        token = self.shown(token_id)
        if token is None:
            return b""  # not kept: unknown ids have no end
        piece = self._bytes_of(token)
        if piece is None:
            piece = self._decode([_NEIGHBOUR, token])[self._neighbour_length :].encode()
        self[token_id] = piece
        return piece

    def first(self, token: str) -> bytes:
        """What `token` adds when it is the first one of a text."""
        piece = self._bytes_of(token)
        return self._decode([token]).encode() if piece is None else piece

    def shown(self, token_id: int) -> str | None:
        token = self._backend.id_to_token(token_id)
        return None if token in self._hidden else token

    def _bytes_of(self, token: str) -> bytes | None:
        if self._byte_level:
            try:
                return bytes([_BYTE_OF[character] for character in token])
            except KeyError:  # an added token, written as it is
                return token.encode()
        if self._byte_fallback and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        return None

    def _decode(self, tokens: list[str]) -> str:
        return " ".join(tokens) if self._decoder is None else str(self._decoder.decode(tokens))


def _stages(decoder: Any) -> list[dict[str, Any]]:
    if decoder is None:
        return []
    # The library shows a decoder's parts only through what it pickles, which is the JSON of tokenizer.json.
    return _flat(json.loads(decoder.__getstate__()))


def _flat(state: dict[str, Any]) -> list[dict[str, Any]]:
    if state["type"] != "Sequence":
        return [state]
    return [stage for part in state["decoders"] for stage in _flat(part)]


def _strips_the_end(stages: list[dict[str, Any]]) -> bool:
    return any(stage["type"] == "Strip" and stage["stop"] for stage in stages)


def _byte_alphabet() -> dict[str, int]:
    """The characters that byte-level vocabularies write bytes with: printable ones stand for themselves."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTE_OF = _byte_alphabet()
