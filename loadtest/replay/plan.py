"""What is sent when: requests with their prompts, made from a trace or for a measurement.

A trace has lengths and no text. Its prompts are made of token ids by chance, so that nothing is in a cache
before; where the trace says which blocks of prompts were the same, the same blocks get the same tokens.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.traces import BLOCK_TOKENS, TracedRequest

# Beyond what tokenizers use for single bytes and marks, and within the smallest vocabulary in use.
_TOKENS = range(1000, 30_000)


@dataclass(frozen=True, slots=True)
class InventedPrompt:
    """So many token ids. Equal blocks of the same run are equal tokens; without blocks all are unique."""

    tokens: int
    run: int
    number: int
    blocks: tuple[int, ...] = ()

    def token_ids(self) -> list[int]:
        ids: list[int] = []
        for block in self.blocks:
            if len(ids) >= self.tokens:
                return ids[: self.tokens]
            ids += random.Random(f"{self.run} block {block}").choices(_TOKENS, k=BLOCK_TOKENS)
        rest = random.Random(f"{self.run} request {self.number}")
        return (ids + rest.choices(_TOKENS, k=max(0, self.tokens - len(ids))))[: self.tokens]


@dataclass(frozen=True, slots=True)
class PlannedRequest:
    """`at_s` since the run begins; the answer is to have exactly `max_tokens`; `extras` join the body."""

    at_s: float
    prompt: str | InventedPrompt
    max_tokens: int
    kind: str = "trace"
    tenant: str = ""
    tier: str = "standard"
    extras: Mapping[str, Any] | None = None

    @property
    def prompt_tokens(self) -> int:
        """0 where only the server can tell."""
        return 0 if isinstance(self.prompt, str) else self.prompt.tokens


def plan_of(requests: Sequence[TracedRequest], run: int | None = None) -> list[PlannedRequest]:
    """Another `run` has other prompts, which an earlier one has not left in any cache; None is a new one."""
    run = random.getrandbits(48) if run is None else run
    return [
        PlannedRequest(
            each.at_s,
            InventedPrompt(each.prompt_tokens, run, number, each.blocks),
            each.output_tokens,
            tenant=each.tenant,
            tier=each.tier or "standard",
        )
        for number, each in enumerate(requests)
    ]
