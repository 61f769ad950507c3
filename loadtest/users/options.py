"""What Locust can be told beside its own options, on the command line and on its web page."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from loadtest.shapes.curves import NAMES

KINDS = {"chat": 6, "completions": 2, "embeddings": 2, "triton": 1, "conversation": 1}


def add_options(parser: Any) -> None:
    """To Locust's parser, which is argparse's with more arguments."""
    add = parser.add_argument
    add("--shape", choices=NAMES, default=NAMES[0], help="How users come and go")
    add(
        "--low", type=float, default=0.2, help="The part of the users between spikes, at night, before a ramp"
    )
    add("--spikes", type=int, default=1, help="Of --shape spike, in the run time")
    add("--days", type=int, default=1, help="Of --shape diurnal, in the run time")
    add(
        "--kinds",
        default=kinds_text(KINDS),
        help="Users of each kind, by weight; kinds left out get no users",
        include_in_web_ui=False,
    )
    add("--model", default="", help="[the first language model that is served]")
    add("--embedding-model", default="", help="[the first that is served]")
    add(
        "--grpc-address",
        default="",
        help="Of the router, for Triton's clients [port 8081 of the host]",
        include_in_web_ui=False,
    )
    add(
        "--tenants",
        default="",
        help="A JSON file with tenants and their keys [one, with the key in INFLIGHT_API_KEY]",
        include_in_web_ui=False,
    )
    add("--by-tenant", action="store_true", default=False, help="Statistics of each tenant on their own")
    add(
        "--trace",
        default="",
        help="A trace: lengths are drawn from it, and --shape trace follows it",
        include_in_web_ui=False,
    )
    add("--prompt-tokens", type=int, default=64, help="Median, without a trace")
    add("--answer-tokens", type=int, default=48, help="Median, without a trace")
    add("--longest-tokens", type=int, default=256, help="Of a prompt, and of an answer")
    add("--shared-prefix-tokens", type=int, default=0, help="With which all prompts of a tenant begin")
    add("--turns", type=int, default=4, help="Of a conversation, on average")
    add("--think-s", type=float, default=1.0, help="Seconds between an answer and the next question, mean")
    add(
        "--ignore-retry-after",
        action="store_true",
        default=False,
        help="Refused users retry after --think-s, without waiting for Retry-After",
    )
    add("--seed", type=int, default=0, help="Of prompts and pauses")
    add("--results", default="", help="A folder for a line about each request", include_in_web_ui=False)


def read_kinds(text: str) -> dict[str, int]:
    """`chat=6,triton` -> weights; a kind without a number has 1. Raises ValueError."""
    kinds: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, weight = part.partition("=")
        if name not in KINDS:
            raise ValueError(f"--kinds has {name!r}; allowed: {', '.join(KINDS)}")
        if weight and not (weight.isdecimal() and int(weight) <= 1000):
            raise ValueError(f"--kinds {part}: a weight is a whole number up to 1000")
        kinds[name] = int(weight or 1)
    if not any(kinds.values()):
        raise ValueError(f"--kinds names no users; allowed: {', '.join(KINDS)}")
    return {name: weight for name, weight in kinds.items() if weight}


def kinds_text(kinds: dict[str, int]) -> str:
    return ",".join(f"{name}={weight}" for name, weight in kinds.items())


def grpc_address(chosen: str, host: str) -> str:
    """Of the router's second port, where none is named: 8081 of the same machine."""
    if chosen:
        return chosen
    name = urlsplit(host).hostname or "127.0.0.1"
    return f"[{name}]:8081" if ":" in name else f"{name}:8081"
