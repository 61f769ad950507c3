"""`python -m benchmarks.gpu.speculation`: tokens a second with guessed tokens and without, the 8B shape.

Random weights say nothing that could be guessed. So answers are given: each token that the engine chose is
exchanged for the next of a text, as a model would have written it, and steps take what they take. The texts
are code that is given back with a name changed, a quote from a document, and prose that is new. Runs with and
without guesses take turns in one process. Exit status 1: less than 1.5 times on code and quotes, or less
than 0.97 on prose.
"""

from __future__ import annotations

import argparse
import re
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from benchmarks.gpu.throughput import add_engine_arguments, build
from benchmarks.speculation import CODE, DOCUMENT, GOALS, HEADING, told
from python_backend.engine.engine import Engine
from python_backend.engine.request import GenerationRequest
from python_backend.engine.steps.ports import ChunkResult
from python_backend.engine.steps.speculator import Speculator

PROSE = (
    "Bread begins with flour, water, salt and time. Mix them until no dry flour is left, and let the "
    "dough rest for half an hour before you knead it. A starter or a little yeast makes it rise; a cold "
    "kitchen makes that slow, and slow dough tastes better. When it has doubled, shape it gently, so "
    "that what it has gathered is not pressed out again. Heat the oven as far as it goes, with a heavy "
    "pot inside. Bake it covered for thirty minutes, then open until the crust is dark. Do not cut it "
    "while it is hot: inside, it is still cooking."
)
TEXTS = {
    "code": (CODE * 2, CODE.replace("read_settings", "load_all").replace("separator", "mark") * 2),
    "quotes": (DOCUMENT * 2, f'The document says: "{DOCUMENT}" That is all of it. {DOCUMENT}'),
    "chat": ("Tell me how bread is baked, in a few sentences.", PROSE),
}
_PIECES = re.compile(r"\s?\w{1,5}|\n\s*|[^\w\s]")
_FIRST_ID = 1000


class Words:
    """About as many tokens as a model's tokenizer would make of a text."""

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}

    def ids(self, text: str) -> list[int]:
        return [self._ids.setdefault(piece, _FIRST_ID + len(self._ids)) for piece in _PIECES.findall(text)]


class Scripted:
    """An executor whose tokens are those of given answers, by the requests' keys."""

    def __init__(self, executor: Any, answers: dict[int, list[int]]) -> None:
        self._executor = executor
        self.answers = answers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def launch(self, chunks: Any, copies: Any) -> Any:
        launched = self._executor.launch(chunks, copies)
        results = launched.results

        def scripted() -> list[ChunkResult]:
            found: list[ChunkResult] = results()
            for chunk, result in zip(chunks, found, strict=True):
                if chunk.yields_token and chunk.sequence.finish_reason is None:
                    place = chunk.end - len(chunk.drafts) - chunk.sequence.prompt_tokens
                    text = self.answers[chunk.sequence.key]
                    for number, each in enumerate((result, *(behind() for behind in result.behind_drafts))):
                        each.token_id = text[min(place + number, len(text) - 1)]
            return found

        launched.results = scripted
        return launched


def run(engine: Engine, script: Scripted, prompt: list[int], answer: list[int], batch: int) -> float:
    """Tokens a second from when all answers have begun."""
    begun: set[int] = set()
    began_s, tokens = 0.0, 0
    for key in range(batch):
        script.answers[key] = answer
        # A tenant of its own each time: what was answered before is not to be found again.
        tenant = f"{time.monotonic_ns()} {key}"
        engine.add(key, GenerationRequest([key + 1, *prompt], len(answer), tenant=tenant))
    while engine.has_work:
        for event in engine.step():
            assert event.error is None, event.error
            tokens += len(event.token_ids) if began_s else 0
            begun.add(event.key)
        if not began_s and len(begun) == batch:
            began_s = time.perf_counter()
    return tokens / (time.perf_counter() - began_s)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", default="1,4,8,16,32", help="comma-separated; the goals apply to 1 to 8")
    parser.add_argument("--repeats", type=int, default=3)
    add_engine_arguments(parser)
    asked = parser.parse_args()
    words, met = Words(), True
    with tempfile.TemporaryDirectory() as folder, torch.inference_mode():
        engine = build(asked, Path(folder))
        script = Scripted(engine._executor, {})
        engine._executor = engine._in_flight._executor = script
        guessing = Speculator(engine.pool, script.most_choices)
        print(HEADING)
        for kind, (given, text) in TEXTS.items():
            prompt, answer = words.ids(given), words.ids(text)
            for batch in map(int, asked.batches.split(",")):
                rates: dict[bool, list[float]] = {False: [], True: []}
                for repeat in range(asked.repeats + 1):
                    for guesses in (False, True):
                        engine._speculator = engine._answers._speculator = guessing if guesses else None
                        before = engine.gauges()
                        rate = run(engine, script, prompt, answer, batch)
                        if repeat:  # the first teaches both what steps take
                            rates[guesses].append(rate)
                ratio = told(kind, batch, rates, before, engine.gauges())
                met &= batch > 8 or ratio >= GOALS[kind]
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
