"""Answers as a model without sense would write them: any allowed token, chosen by a seed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

import numpy as np

from python_backend.engine.guides import GuideCompiler, GuideLimits, GuideState
from python_backend.engine.request import Guide, GuideKind
from python_backend.engine.sampling.adjustments import mask_of
from tests.pace import patience
from tests.text.tokenizer_kinds import SPECIAL, byte_level_backend

END_ID = SPECIAL.index("</s>")
BACKEND = byte_level_backend()
# As in many checkpoints, the logits are wider than the tokenizer's vocabulary.
VOCABULARY = BACKEND.get_vocab_size(with_added_tokens=True) + 100
WAIT_S = patience(60.0)


def id_of(token: str) -> int:
    token_id = BACKEND.token_to_id(token)
    assert token_id is not None
    return token_id


CLOSING = {END_ID, *map(id_of, '"]}.')}


@contextmanager
def compiler_in(directory: Path, limits: GuideLimits | None = None) -> Iterator[GuideCompiler]:
    file = directory / "tokenizer.json"
    BACKEND.save(str(file))
    compiler = GuideCompiler(file, VOCABULARY, [END_ID], limits)
    try:
        yield compiler
    finally:
        compiler.close()


def state_of(compiler: GuideCompiler, kind: GuideKind, text: str = "") -> GuideState:
    return compiler.compile(Guide(kind, text), "owner").result(WAIT_S)


def tokens_allowed(state: GuideState, end_id: int | None = END_ID) -> list[int]:
    ids: list[int] = np.flatnonzero(mask_of(state.bits(end_id), VOCABULARY)).tolist()
    return ids


def feed(state: GuideState, text: str) -> None:
    """Writes a text that the guide allows."""
    for token_id in BACKEND.encode(text, add_special_tokens=False).ids:
        assert token_id in tokens_allowed(state)
        state.advance(token_id)


def walk(state: GuideState, seed: int, longest: int = 400) -> str:
    """A random answer up to its end; short tokens and closing ones are preferred so that it comes."""
    dice = Random(seed)
    ids: list[int] = []
    while len(ids) < longest:
        allowed = tokens_allowed(state)
        assert allowed, f"no token may follow {BACKEND.decode(ids)!r}"
        assert max(allowed) < VOCABULARY - 100
        closing = [token for token in allowed if token in CLOSING]
        token_id = dice.choice(closing if closing and (dice.random() < 0.5 or len(ids) > 60) else allowed)
        if token_id == END_ID:
            return BACKEND.decode(ids, skip_special_tokens=False)
        ids.append(token_id)
        state.advance(token_id)
    raise AssertionError(f"no end in sight after {BACKEND.decode(ids)[:300]!r}")
