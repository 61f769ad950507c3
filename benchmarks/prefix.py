"""Time to first token for a prompt whose first thousand tokens were asked before, on the whole stack."""

from __future__ import annotations

import json
import time
from statistics import median

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.plots import Plots
from benchmarks.stack import RunningStack, running_stack

TRIES, GOAL = 5, 5.0
# About two tokens each, and every prefix another one.
_WORDS = [f" item{number}" for number in range(400)]


def prompt(prefix: int, question: int) -> str:
    return f"List {prefix}:" + "".join(_WORDS) + f"\nQuestion {question}: what is this list about?"


def first_token_s(client: httpx.Client, stack: RunningStack, text: str) -> tuple[float, int]:
    """How long the first piece of text took, and how many tokens the prompt had."""
    body = {"model": stack.model, "prompt": text, "max_tokens": 4, "temperature": 0, "stream": True}
    body["stream_options"] = {"include_usage": True}
    began_s = time.perf_counter()
    took_s, prompt_tokens = 0.0, 0
    with client.stream("POST", f"{stack.url}/v1/completions", json=body) as response:
        response.raise_for_status()
        for line in response.iter_lines():
            if not line.startswith("data: {"):
                continue
            chunk = json.loads(line.removeprefix("data: "))
            if chunk["choices"] and chunk["choices"][0]["text"]:
                took_s = took_s or time.perf_counter() - began_s
            prompt_tokens = (chunk.get("usage") or {}).get("prompt_tokens", prompt_tokens)
    return took_s, prompt_tokens


def report(console: Console, plots: Plots) -> bool:
    cold, warm = [], []
    with running_stack({"enable_kv_cache_reuse": "true"}) as stack, httpx.Client(timeout=120) as client:
        first_token_s(client, stack, "Hello")
        for number in range(TRIES):
            took_s, tokens = first_token_s(client, stack, prompt(number, 0))
            cold.append(took_s)
            warm += [first_token_s(client, stack, prompt(number, question))[0] for question in (1, 2)]
    ratio = median(cold) / median(warm)
    table = Table(f"time to first token, {tokens} prompt tokens", "median", "lowest", "highest")
    for label, values in (("prefix never seen", cold), ("prefix seen before", warm)):
        table.add_row(
            label, *(f"{value * 1000:.0f} ms" for value in (median(values), min(values), max(values)))
        )
    console.print(table)
    console.print(f"{ratio:.1f} times lower (goal: {GOAL:g}) {'met' if ratio >= GOAL else 'MISSED'}")
    plots.bars(
        "prefix",
        f"Time to first token, {tokens} prompt tokens",
        "ms",
        ["median"],
        {"prefix never seen": [median(cold) * 1000], "prefix seen before": [median(warm) * 1000]},
    )
    return ratio >= GOAL
