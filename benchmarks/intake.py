"""`python -m benchmarks.intake`: what a long prompt that came before takes on its way into the engine, in ms.

What the text's tokens take is the tokenizer's; the rest is paid by each of a conversation's turns, some of it
by the engine's step loop while all others wait.
"""

from __future__ import annotations

import argparse
import time
from array import array
from collections.abc import Callable
from statistics import median
from typing import TypeVar

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from python_backend.engine.kv.prefix_cache import Chains, first_hashes
from python_backend.engine.process.messages import Submit, pack, unpack_command
from python_backend.engine.refusals import refuse_impossible
from python_backend.engine.request import GenerationRequest
from python_backend.engine.sequence import Sequence
from python_backend.text.literal_encoder import LiteralEncoder

Result = TypeVar("Result")
_WORDS = 128_000
_TURN_TOKENS = 16


def timed(name: str, do: Callable[[], Result], rounds: int) -> Result:
    took_ms = []
    for _ in range(rounds):
        began_s = time.perf_counter()
        result = do()
        took_ms.append(1000 * (time.perf_counter() - began_s))
    print(f"{name:<48} {median(took_ms):7.2f}  (least {min(took_ms):.2f})")
    return result


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.intake")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--tokens-per-block", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    dice = np.random.default_rng(0)
    words = [f"w{each}" for each in dice.integers(1000, _WORDS, asked.tokens + asked.rounds * _TURN_TOKENS)]
    backend = Tokenizer(
        WordLevel({f"w{each}": each for each in range(_WORDS)} | {"?": _WORDS}, unk_token="?")
    )
    backend.pre_tokenizer = Whitespace()
    backend.add_special_tokens(["<|user|>"])
    encoder = LiteralEncoder(backend)
    ends = range(asked.tokens, len(words), _TURN_TOKENS)
    turns = iter([f"<|user|> {' '.join(words[: end + _TURN_TOKENS])}" for end in ends])

    def tokenized() -> list[array[int]]:
        return encoder.encode_batch([next(turns)], "\u2063", True, "somebody")

    tokenized()
    (ids,) = timed("preprocessing: a turn is added to a conversation", tokenized, asked.rounds - 1)
    request = GenerationRequest(ids, max_new_tokens=8)
    frame = timed("to the engine process: written", lambda: pack(Submit.of(1, request, 0)), asked.rounds)
    command = timed("in the step loop: read", lambda: unpack_command(frame), asked.rounds)
    assert isinstance(command, Submit)
    request = timed("in the step loop: the request", lambda: command.request, asked.rounds)
    limits = (_WORDS + 2, 2 * asked.tokens, 1)
    timed("in the step loop: checked", lambda: refuse_impossible(request, *limits), asked.rounds)
    sequence = timed("in the step loop: a sequence", lambda: Sequence(1, 1, request, 8), asked.rounds)
    chains = Chains(asked.tokens_per_block)

    def hashed() -> None:
        chains.extend(first_hashes(request), sequence.tokens)

    timed("in the step loop: its blocks, the first time", hashed, 1)
    timed("in the step loop: its blocks, later", hashed, asked.rounds)


if __name__ == "__main__":
    main()
