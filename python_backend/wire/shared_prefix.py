"""How a router tells the engine that a prompt begins with something that tenants may share.

Which beginnings those are is up to the operator. The engine is told how many tokens, and a digest that the
prompt's own tokens must have: what was not named is never shared by mistake.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from hashlib import blake2b

SHARED_PREFIX = "inflight_shared_prefix"
_DIGEST_BYTES = 16


def describe(token_ids: Sequence[int]) -> str:
    digest = blake2b(array("i", token_ids).tobytes(), digest_size=_DIGEST_BYTES).hexdigest()
    return f"{len(token_ids)}:{digest}"


def shared_tokens(description: str, prompt_ids: Sequence[int]) -> int:
    """How many of the prompt's first tokens are the described ones: all of them, or none."""
    count, _, _ = description.partition(":")
    if not (count.isascii() and count.isdigit()) or len(count) > 9:
        return 0
    beginning = prompt_ids[: int(count)]
    return len(beginning) if beginning and describe(beginning) == description else 0
