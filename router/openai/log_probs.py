"""Log probabilities as the API writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from router.core.generation import LoggedToken

# Tokens in order, each with the character of the text at which it begins.
Logged = Sequence[tuple[int, "LoggedToken"]]
# How OpenAI writes what is all but impossible; JSON has no infinity.
_LEAST = -9999.0


def chat_log_probs(tokens: Logged) -> dict[str, Any]:
    return {"content": [_entry(token) for _, token in tokens], "refusal": None}


def _entry(token: LoggedToken) -> dict[str, Any]:
    return {
        **_named(token.piece, token.log_prob or 0.0, is_hidden=token.is_hidden),
        "top_logprobs": [_named(piece, log_prob) for piece, log_prob in token.top],
    }


def _named(piece: bytes, log_prob: float, *, is_hidden: bool = False) -> dict[str, Any]:
    return {
        "token": piece.decode("utf-8", "backslashreplace"),
        "logprob": max(log_prob, _LEAST),
        "bytes": None if is_hidden else list(piece),
    }


def completion_log_probs(tokens: Logged) -> dict[str, Any]:
    """`top_logprobs` holds the token itself beside the likeliest, and is null where none were asked for."""
    tops = [_likeliest(token) for _, token in tokens]
    return {
        "tokens": [_text(token.piece) for _, token in tokens],
        "token_logprobs": [
            None if token.log_prob is None else max(token.log_prob, _LEAST) for _, token in tokens
        ],
        "top_logprobs": tops if any(tops) else None,
        "text_offset": [begin for begin, _ in tokens],
    }


def _likeliest(token: LoggedToken) -> dict[str, float] | None:
    if not token.top or token.log_prob is None:
        return None
    found: dict[str, float] = {}
    # Two tokens may read the same; the likelier stands for both.
    for piece, log_prob in (*token.top, (token.piece, token.log_prob)):
        found.setdefault(_text(piece), max(log_prob, _LEAST))
    return found


def _text(piece: bytes) -> str:
    """Half a character is written as its bytes."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return f"bytes:{piece.decode('utf-8', 'backslashreplace')}"
