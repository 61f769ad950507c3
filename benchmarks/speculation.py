"""`python -m benchmarks.speculation`: tokens a second with guessed tokens and without, in one run.

The default model on the CPU, greedy. Three kinds of prompts: code to be given back with a small change, a
document to be quoted from, and plain chat. For each batch size the two engines take turns, after a run that
teaches both what steps cost; the ratio is of medians, and the texts must be equal. Exit status 1: less than
1.5 times on code and quotes, or less than 0.97 on chat.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from tokenizers import Tokenizer

from benchmarks.default_model import default_model_path
from python_backend.engine.build import build_engine
from python_backend.engine.config import EngineConfig
from python_backend.engine.engine import Engine
from python_backend.engine.report import Gauges
from python_backend.engine.request import GenerationRequest

GOALS = {"code": 1.5, "quotes": 1.5, "chat": 0.97}
NEW_TOKENS = 64
TIMES = 3  # as many answers as are made at a time
CODE = '''def read_settings(path):
    """Reads settings from a file of lines, NAME = VALUE."""
    settings = {}
    with open(path) as file:
        for number, line in enumerate(file, start=1):
            line = line.strip()
            if not line or line.startswith("#"):
                continue
            name, separator, value = line.partition("=")
            if not separator:
                raise ValueError(f"line {number} of {path} has no value")
            settings[name.strip()] = value.strip()
    return settings
'''
DOCUMENT = (
    "The lighthouse of Saint Mary was built in 1868 by the engineer Thomas Hale. It stands on a rock of red "
    "granite, twelve miles from the coast, and its light can be seen from a distance of twenty miles. During "
    "the great storm of 1891 the lower windows were broken and the keepers lived for nine days in the lamp "
    "room. The light was changed from oil to electricity in 1934 and has worked without a keeper since 1982."
)
PROMPTS = {
    "code": [
        f"Rename the function {name} in this code and give the whole code back.\n\n```python\n{CODE}```"
        for name in (
            f"read_settings to {new}" for new in ("load_all", "parse_file", "settings_of", "read_all")
        )
    ],
    "quotes": [
        f"{DOCUMENT}\n\nQuote the text above word for word{ending}"
        for ending in (".", ", completely.", " and add nothing.", ", from its beginning to its end.")
    ],
    "chat": [
        "Tell me how bread is baked.",
        "Why is the sky blue in the day and red in the evening?",
        "Write a short letter to a friend who has moved to another city.",
        "What should I see in Rome if I have only two days?",
    ],
}


def build(path: str, speculates: bool, threads: int | None) -> Engine:
    return build_engine(
        EngineConfig(
            path,
            tokenizer_dir=str(Path(path).parent),
            max_tokens_in_kv_cache=16384,
            max_sequence_tokens=2048,
            enable_kv_cache_reuse=False,
            threads=threads,
            speculates=speculates,
        )
    )


def run(
    engine: Engine, prompts: list[list[int]], batch: int, clock_ns: Callable[[], int]
) -> tuple[float, dict[int, list[int]]]:
    """Tokens a second while so many are answered at a time, and the answers.

    Who ends makes room for the next: guesses are not to look bad for leaving a batch half empty.
    """
    answers: dict[int, list[int]] = {}

    def add() -> None:
        key = len(answers)
        answers[key] = []
        # A tenant of its own each time: what was answered before is not to be found again.
        tenant = f"{time.monotonic_ns()} {key}"
        engine.add(key, GenerationRequest(prompts[key % len(prompts)], NEW_TOKENS, tenant=tenant))

    for _ in range(batch):
        add()
    began_ns = ended_ns = tokens = 0
    while engine.has_work:
        for event in engine.step():
            assert event.error is None, event.error
            answers[event.key] += event.token_ids
            tokens += len(event.token_ids) if began_ns and not ended_ns else 0
            if event.is_last and len(answers) < TIMES * batch:
                add()
            elif event.is_last:
                ended_ns = ended_ns or clock_ns()
        if not began_ns and all(answers.values()):
            began_ns = clock_ns()
    return tokens * 1e9 / (ended_ns - began_ns), answers


HEADING = "answers   batch   without      with   ratio   right   tokens a step"


def told(kind: str, batch: int, rates: dict[bool, list[float]], before: Gauges, after: Gauges) -> float:
    """Prints a line of what was seen with guesses and without; returns the ratio."""
    without, with_guesses = (statistics.median(rates[each]) for each in (False, True))
    drafted = after.drafted_tokens - before.drafted_tokens
    right = (after.accepted_drafts - before.accepted_drafts) / max(drafted, 1)
    steps = after.sequence_steps - before.sequence_steps
    a_step = (after.generated_tokens - before.generated_tokens) / steps
    print(
        f"{kind:8} {batch:6} {without:9,.0f} {with_guesses:9,.0f} {with_guesses / without:7.2f} {right:7.0%}"
        f" {a_step:9.2f}",
        flush=True,
    )
    return with_guesses / without


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--batches", default="1,4,8", help="comma-separated")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int)
    parser.add_argument(
        "--processor-time",
        action="store_true",
        help="one thread, and the time that it had a processor: where others use the machine",
    )
    parser.add_argument("--kinds", default=",".join(PROMPTS), help="comma-separated")
    asked = parser.parse_args()
    path = default_model_path(Console())
    tokenizer = Tokenizer.from_file(str(Path(path).parent / "tokenizer.json"))
    clock_ns = time.process_time_ns if asked.processor_time else time.monotonic_ns
    threads = 1 if asked.processor_time else asked.threads
    engines = {speculates: build(path, speculates, threads) for speculates in (False, True)}
    for engine in engines.values():
        engine._now_ns = clock_ns  # what steps cost is learned by the same clock
    met = True
    print(HEADING)
    for kind in asked.kinds.split(","):
        texts = PROMPTS[kind]
        chats = [f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n" for text in texts]
        prompts = [tokenizer.encode(chat, add_special_tokens=False).ids for chat in chats]
        for batch in map(int, asked.batches.split(",")):
            for engine in engines.values():
                run(engine, prompts, batch, clock_ns)
            rates: dict[bool, list[float]] = {False: [], True: []}
            before = engines[True].gauges()
            for _ in range(asked.repeats):
                found = {}
                for speculates, engine in engines.items():
                    rate, found[speculates] = run(engine, prompts, batch, clock_ns)
                    rates[speculates].append(rate)
                assert found[True] == found[False], "the texts differ"
            met &= told(kind, batch, rates, before, engines[True].gauges()) >= GOALS[kind]
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
