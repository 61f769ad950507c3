"""What it costs that tenants share no cached prompts, where all of them have the same system prompt."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.objectives.serving import make_tenants
from benchmarks.plots import Plots
from benchmarks.stack import RunningStack, running_stack

TENANTS, QUESTIONS = 8, 4
SYSTEM = "You are the assistant of a bank with many rules. " + "".join(
    f"Rule {number}: be brief, kind and exact about item {number}. " for number in range(50)
)
ISOLATION = "inflight_tenant_cache_isolation"
# What is tried -> settings of the engine and of the router.
SETTINGS: Mapping[str, tuple[dict[str, str], dict[str, Any]]] = {
    "everybody shares everything": ({ISOLATION: "false"}, {}),
    "tenants apart (default)": ({}, {}),
    "tenants apart, system prompt named": ({}, {"shared_prefixes": [SYSTEM]}),
}


@dataclass(frozen=True)
class Cost:
    prompt_tokens: int
    cached_tokens: int
    took_s: float  # median, for an answer of one token

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens


def measure(stack: RunningStack, keys: Mapping[str, str]) -> Cost:
    prompt_tokens, cached_tokens, took_s = 0, 0, []
    with httpx.Client(base_url=stack.url, timeout=120) as client:
        for question in range(QUESTIONS):
            for tenant, key in keys.items():
                text = f"{tenant} asks: what about item {question}?"
                messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
                body = {"model": stack.model, "messages": messages, "max_tokens": 1}
                began_s = time.perf_counter()
                answer = client.post(
                    "/v1/chat/completions", json=body, headers={"Authorization": f"Bearer {key}"}
                )
                answer.raise_for_status()
                took_s.append(time.perf_counter() - began_s)
                usage = answer.json()["usage"]
                prompt_tokens += usage["prompt_tokens"]
                cached_tokens += usage["prompt_tokens_details"]["cached_tokens"]
    return Cost(prompt_tokens, cached_tokens, median(took_s))


def report(console: Console, plots: Plots) -> bool:
    del plots
    table = Table(
        f"{TENANTS} tenants, {QUESTIONS} questions each", "found in the cache", "computed", "median time"
    )
    for label, (engine, router) in SETTINGS.items():
        with tempfile.TemporaryDirectory(prefix="inflight-prefixes-") as folder:
            state_dir = Path(folder) / "state"
            keys, _ = make_tenants(state_dir, [f"t{number}" for number in range(TENANTS)])
            settings = {"state_dir": str(state_dir), **router}
            with running_stack(engine, router_settings=settings, embeddings=False) as stack:
                cost = measure(stack, keys)
        computed = f"{cost.prompt_tokens - cost.cached_tokens:,} of {cost.prompt_tokens:,} tokens"
        table.add_row(label, f"{cost.hit_rate:.1%}", computed, f"{cost.took_s * 1000:.0f} ms")
    console.print(table)
    return True
