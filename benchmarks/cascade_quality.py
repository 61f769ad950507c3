"""`python -m benchmarks.cascade_quality`: right answers of a small model, a large one and cascades of both.

The large model is the default one. The small one is the same with its weights rounded to mxfp4, which makes
it worse in earnest: a pair that fits here and differs in nothing else. A real stack serves both, behind
cascades with several thresholds of `least_log_prob`. Each question has one right answer.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.cheaper_answers import LARGE, PRICES
from benchmarks.default_model import default_model_path
from benchmarks.releases import inflight
from benchmarks.stack import RunningStack, running_stack
from benchmarks.transformers_model import load_in_transformers
from tests.engine.quantized_checkpoints import quantize
from tests.router.running import MODEL as SMALL_IN_PRICES

SMALL, FORMAT = "small", "compressed-tensors, mxfp4"
_READY_WITHIN_S = 120.0
THRESHOLDS = (-0.2, -0.35, -0.5, -0.8)
CAPITALS = (
    "France Paris, Germany Berlin, Italy Rome, Spain Madrid, Portugal Lisbon, Austria Vienna, Greece Athens, "
    "Poland Warsaw, Hungary Budapest, Norway Oslo, Sweden Stockholm, Finland Helsinki, Denmark Copenhagen, "
    "Ireland Dublin, Russia Moscow, Ukraine Kyiv, Turkey Ankara, Egypt Cairo, Kenya Nairobi, Japan Tokyo, "
    "China Beijing, India Delhi, Thailand Bangkok, Vietnam Hanoi, Cuba Havana, Peru Lima, Chile Santiago, "
    "Canada Ottawa, Australia Canberra, Iraq Baghdad, Iran Tehran, Belgium Brussels, Romania Bucharest, "
    "Bulgaria Sofia, Argentina Aires, Indonesia Jakarta, Nepal Kathmandu, Lebanon Beirut, Syria Damascus"
)
OPPOSITES = (
    "hot cold, up down, big small, fast slow, day night, open closed, happy sad, rich poor, old young, "
    "hard soft, early late, full empty, light dark, strong weak, wet dry, high low, love hate, win lose, "
    "true false, black white, left right, start end, buy sell, near far, alive dead, clean dirty"
)
PAST = (
    "go went, eat ate, see saw, take took, write wrote, run ran, come came, buy bought, think thought, "
    "give gave, drink drank, sing sang, fly flew, know knew, begin began, break broke, drive drove, "
    "teach taught, catch caught, find found, leave left, keep kept, speak spoke, swim swam"
)
YOUNG = "dog puppy, cat kitten, cow calf, horse foal, sheep lamb, duck duckling, bear cub, frog tadpole"


def pairs(words: str) -> list[tuple[str, str]]:
    found = []
    for each in words.split(", "):
        asked, answer = each.split()
        found.append((asked, answer))
    return found


def questions() -> list[tuple[str, str]]:
    """Each with the word that a right answer has in it."""
    sums = [(f"What is {a} + {b}?", str(a + b)) for a in range(2, 10) for b in range(a, 10, 2)]
    return [
        *((f"What is the capital of {country}?", capital) for country, capital in pairs(CAPITALS)),
        *((f'What is the opposite of "{word}"?', other) for word, other in pairs(OPPOSITES)),
        *((f'What is the past tense of "{verb}"?', past) for verb, past in pairs(PAST)),
        *((f"What is a young {animal} called?", young) for animal, young in pairs(YOUNG)),
        *sums,
    ]


@dataclass(frozen=True)
class Answer:
    is_right: bool
    tokens: int
    is_sent_on: bool


def ask(http: httpx.Client, model: str, question: tuple[str, str]) -> Answer:
    text, right = question
    body = {
        "model": model,
        "messages": [{"role": "user", "content": text}],
        "max_tokens": 24,
        "temperature": 0,
    }
    response = http.post("/v1/chat/completions", json=body)
    response.raise_for_status()
    answered = response.json()
    said: str = answered["choices"][0]["message"]["content"]
    is_right = re.search(rf"\b{re.escape(right)}\b", said, re.IGNORECASE) is not None
    is_sent_on = "reason=" in response.headers.get("x-inflight-cascade", "")
    return Answer(is_right, answered["usage"]["total_tokens"], is_sent_on)


def named(threshold: float) -> str:
    return f"cascade{threshold:g}"


def answers(stack: RunningStack, model: str) -> list[Answer]:
    with httpx.Client(base_url=stack.url, timeout=300) as http, ThreadPoolExecutor(4) as threads:
        return list(threads.map(partial(ask, http, model), questions()))


def serve_small(stack: RunningStack, path: Path) -> None:
    inflight(stack, "add", SMALL, str(path))
    inflight(stack, "promote", f"{SMALL}@1")
    deadline_s = time.monotonic() + _READY_WITHIN_S
    with httpx.Client(base_url=stack.url) as http:
        while SMALL not in [each["id"] for each in http.get("/v1/models").json()["data"]]:
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{SMALL} is not served after {_READY_WITHIN_S:g} s")
            time.sleep(0.5)


def report(stack: RunningStack, console: Console) -> None:
    large, small = answers(stack, stack.model), answers(stack, SMALL)
    price, cheap = PRICES[LARGE], PRICES[SMALL_IN_PRICES]
    whole = sum(each.tokens for each in large) * price
    table = Table("way", "right answers", "sent on to the large model", "paid")
    table.add_row("large alone", _share(large), "", "100 %")
    for threshold in THRESHOLDS:
        found = answers(stack, named(threshold))
        paid = sum(each.tokens for each in small) * cheap
        paid += (
            sum(of_large.tokens for of_large, each in zip(large, found, strict=True) if each.is_sent_on)
            * price
        )
        sent_on = sum(each.is_sent_on for each in found) / len(found)
        table.add_row(
            f"least_log_prob = {threshold:g}", _share(found), f"{sent_on:.0%}", f"{paid / whole:.0%}"
        )
    paid = sum(each.tokens for each in small) * cheap
    table.add_row("small alone", _share(small), "", f"{paid / whole:.0%}")
    console.print(f"{len(large)} questions, greedy, at ${cheap:g} and ${price:g} per million tokens")
    console.print(table)


def _share(found: list[Answer]) -> str:
    return f"{sum(each.is_right for each in found) / len(found):.1%}"


def main() -> int:
    console = Console(width=110)
    source = Path(default_model_path(console))
    files = source if source.is_dir() else source.parent
    with tempfile.TemporaryDirectory(prefix="inflight-cascade-") as folder:
        path = quantize(load_in_transformers(source), Path(folder) / SMALL, FORMAT)
        for each in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(files / each, path)
        cascades = [
            {"name": named(each), "small": SMALL, "large": files.name, "least_log_prob": each}
            for each in THRESHOLDS
        ]
        with running_stack(router_settings={"cascades": cascades}, embeddings=False) as stack:
            serve_small(stack, path)
            report(stack, console)
    return 0


if __name__ == "__main__":
    sys.exit(main())
