"""A process in which a guide may break: it turns guides into grammars and compiles each once, for its cost.

Some texts of a few bytes take minutes to compile, or more stack or memory than there is, and nothing can
stop a compilation from outside. Here it may end the process: by an alarm after its time of a processor, or
after a multiple of that on a busy machine, by the limit on its memory, or by a small stack. What compiles
here compiles in the engine, which has more of each.

This file is run as a script, for which it needs llguidance alone. It reads one guide and writes one verdict
a line, until its input ends.
"""

from __future__ import annotations

import json
import re
import resource
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import gbnf_to_lark

if TYPE_CHECKING:
    from llguidance._lib import JsonCompileOptions

_STACK_BYTES = 1024 * 1024
# The steps of others go first: on a busy machine a guide takes longer than its own time.
PATIENCE = 5
# A blank, or a new line with its indentation, but never one after the other without end.
_WHITESPACE = r" |\n[ ]{0,32}|\n\t{0,8}"
_JSON_OPTIONS: JsonCompileOptions = {
    "whitespace_flexible": True,
    "whitespace_pattern": _WHITESPACE,
    "item_separator": ",",
    "key_separator": ":",
}
_ANY_JSON = '{"type": ["object", "array"]}'

_GBNF_RULE = re.compile(r"^\s*[\w-]+\s*::=", re.MULTILINE)
_QUOTED = r'"(?:\\.|[^"\\\n])*"|\[(?:\\.|[^\]\\\n])*\]'
_COMMENT = re.compile(rf"({_QUOTED})|#[^\n]*")
_LINE_END = re.compile(rf"({_QUOTED})|\s*\n(?!\s*[\w-]+\s*::=)\s*")
_CODE_POINT = re.compile(r"\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\\\")


def grammar_of(kind: str, text: str) -> str:
    """The guide in llguidance's own notation; ValueError where it cannot be read."""
    if kind == "json":
        return LLMatcher.grammar_from_json_schema(_ANY_JSON, overrides=_JSON_OPTIONS)
    if kind == "json_schema":
        return LLMatcher.grammar_from_json_schema(text, overrides=_JSON_OPTIONS)
    if kind == "regex":
        return LLMatcher.grammar_from_regex(text)
    if text.strip() and not _GBNF_RULE.search(text):  # then its rules are written as Lark has them
        return LLMatcher.grammar_from_lark(text)
    try:
        return LLMatcher.grammar_from_lark(gbnf_to_lark(plain_gbnf(text)))
    except Exception as error:  # what the converter raises, and a stack of its own that is too deep
        raise ValueError(str(error)) from error


def plain_gbnf(text: str) -> str:
    """A grammar as its converter reads it: without comments, a rule a line, characters written out."""
    text = _COMMENT.sub(lambda match: match[1] or "", text.replace("\r\n", "\n").strip())
    text = _LINE_END.sub(lambda match: match[1] or " ", text)
    return _CODE_POINT.sub(_character, text) + "\n"


def _character(escape: re.Match[str]) -> str:
    """The converter drops leading zeros of code points, which changes what they mean."""
    digits = escape[1] or escape[2]
    if digits is None:
        return escape[0]
    code = int(digits, 16)
    return f"\\x{code:02x}" if code < 0x80 else chr(code)


def verdict_on(
    tokenizer: LLTokenizer, kind: str, text: str, compile_s: float, step_s: float
) -> dict[str, str]:
    _set_alarms(compile_s)
    try:
        grammar = grammar_of(kind, text)
    except ValueError as error:
        return {"error": str(error)}
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LLParserLimits(verbose_errors=False))
    if not matcher.is_error():
        _set_alarms(step_s)
        matcher.compute_bitmask()
    return {"error": matcher.get_error()} if matcher.is_error() else {"grammar": grammar}


def _set_alarms(cpu_s: float) -> None:
    """None with 0."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    signal.setitimer(signal.ITIMER_REAL, cpu_s * PATIENCE)


def serve(compile_s: float, step_s: float) -> None:
    tokenizer = LLTokenizer("byte")
    for line in sys.stdin:
        kind, text = json.loads(line)
        began_s = time.process_time()
        verdict = verdict_on(tokenizer, kind, text, compile_s, step_s)
        _set_alarms(0)
        sys.stdout.write(json.dumps({**verdict, "took_s": time.process_time() - began_s}) + "\n")
        sys.stdout.flush()


def main(compile_s: float, step_s: float, memory_bytes: int) -> None:
    for alarm in (signal.SIGALRM, signal.SIGPROF):
        signal.signal(alarm, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    threading.stack_size(_STACK_BYTES)
    server = threading.Thread(target=serve, args=(compile_s, step_s))
    server.start()
    server.join()


if __name__ == "__main__":
    main(float(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
