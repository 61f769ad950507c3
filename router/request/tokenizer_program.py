"""Run as a program of its own: counts, encodes and decodes with the tokenizers of checkpoints.

A large tokenizer takes seconds to be read, and nothing else of a process runs meanwhile: the library keeps
the interpreter to itself. So that is done here, where nobody's stream has to wait for it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import sys
import time
from functools import lru_cache
from typing import Any

LOAD, COUNT, ENCODE, NAMES, DECODE = b"l", b"c", b"e", b"n", b"d"
# As whoever asks writes and reads them: a kind and a size, then JSON; then whether all went well, how much
# time of a processor it took and a size, then JSON, or the reason.
_QUESTION = struct.Struct(">cQ")
_ANSWER = struct.Struct(">?dQ")
_READY = b"\n"
_PR_SET_PDEATHSIG = 1
_MOST_KEPT = 16
# By which factor a tokenizer may shorten a text before it looks at it: composed characters have a third of
# the bytes of what they are composed of. Other tokenizers may drop or replace any part of it.
_SHORTENING = {"NoneType": 1, "NFC": 3}


@lru_cache(_MOST_KEPT)
def load(path: str) -> Any:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(path)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def most_bytes(tokenizer: Any) -> int | None:
    """Those of a text that one token stands for at most; None where that is not known."""
    shortening = _SHORTENING.get(type(tokenizer.normalizer).__name__)
    if shortening is None or "ByteLevel" not in str(tokenizer.pre_tokenizer):
        return None
    # Byte-level tokens are written with a character for each byte, of which some take two themselves.
    return shortening * max(len(token.encode()) for token in tokenizer.get_vocab())


def answer(kind: bytes, path: str, *given: Any) -> Any:
    """Raises ValueError for an id that is no token's, and whatever the library does."""
    tokenizer = load(path)
    if kind == LOAD:
        return most_bytes(tokenizer)
    if kind == COUNT:
        [text] = given
        return len(tokenizer.encode(text, add_special_tokens=False))
    if kind == ENCODE:
        text, add_special_tokens = given
        return tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
    [ids] = given
    if kind == NAMES:
        return [tokenizer.id_to_token(each) for each in ids]
    size = tokenizer.get_vocab_size()
    for index, token in enumerate(ids):
        if token >= size and tokenizer.id_to_token(token) is None:
            raise ValueError(f"tokens[{index}]: there is no token {token}")
    return tokenizer.decode(ids, skip_special_tokens=False)


def main() -> None:
    # Stopped as it may be, it would not see its standard input end.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # One thread's work: the library would take all processors for one tenant.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    answers.write(_READY)
    answers.flush()
    while len(head := questions.read(_QUESTION.size)) == _QUESTION.size:
        kind, size = _QUESTION.unpack(head)
        given = json.loads(questions.read(size))
        began_s = time.process_time()
        try:
            is_well, found = True, json.dumps(answer(kind, *given)).encode()
        except Exception as error:  # the library raises nothing narrower
            is_well, found = False, str(error).encode()
        answers.write(_ANSWER.pack(is_well, time.process_time() - began_s, len(found)) + found)
        answers.flush()


if __name__ == "__main__":
    main()
