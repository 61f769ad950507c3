"""`python -m benchmarks.gpu.steady`: requests that arrive one by one, against this stack and `vllm serve`.

The same open-loop client asks both, one after the other on one machine: one request alone, five rates, a
burst, a long context among short ones, short turns on long prefixes, and half of the requests with a guide.
`--vllm PYTHON` names an interpreter that has vLLM; without one only this stack is asked. What was seen is
kept with `--keep FILE`; elsewhere `--draw FILE` makes the table and the plot of it.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.gpu.llama_8b import RANDOM_WEIGHTS, write_checkpoint
from benchmarks.gpu.processor_time import seconds_by_process
from benchmarks.gpu.steady_report import draw, show
from benchmarks.gpu.vllm_server import running_vllm
from benchmarks.stack import start_stack, wait_until_ready
from loadtest.replay.clients import send_from
from loadtest.replay.plan import PlannedRequest
from loadtest.replay.sender import Target
from loadtest.results import RequestResult
from loadtest.server_metrics import scrape

RATES = (5.0, 15.0, 30.0, 45.0, 60.0)
LONG_TOKENS = 100_000
SEQUENCE_TOKENS = 110_000
# Of a vocabulary of words no JSON can be spelled. One allows what a JSON string may hold, which is what most
# tokens of real answers are; the other makes llguidance look at every word of the vocabulary for each token.
GUIDES = tuple(
    {"structured_outputs": {"regex": text}} for text in (r'[^"\\\x00-\x1F\x7F]+', r"([ _][uvw][0-9]{1,6})+")
)
Plan = Callable[[random.Random], list[PlannedRequest]]


@dataclass(frozen=True)
class Server:
    name: str
    url: str
    model: str
    pid: int
    tells_stages: bool = False


@dataclass
class Seen:
    """What one server did in one part; of its own stages the mean milliseconds a request."""

    server: str
    part: str
    seconds: float
    results: list[dict[str, Any]] = field(default_factory=list)
    stages_ms: dict[str, float] = field(default_factory=dict)
    processor_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Part:
    name: str
    plan: Plan
    warms: bool = False  # nothing of it is kept: it only fills a cache


def _words(dice: random.Random, count: int) -> str:
    return " ".join(f"w{dice.randrange(1000, 128_000)}" for _ in range(count))


def _alone(dice: random.Random) -> list[PlannedRequest]:
    return [PlannedRequest(0.6 * number, _words(dice, 512), 32, "alone") for number in range(12)]


def _poisson(rate: float, seconds: float, guided: bool = False) -> Plan:
    """Prompts of about 330 tokens and answers of about 120, as in chats; every second one with a guide."""

    def plan(dice: random.Random) -> list[PlannedRequest]:
        found, at_s = list[PlannedRequest](), dice.expovariate(rate)
        while at_s < seconds:
            prompt = min(4000, max(8, round(dice.lognormvariate(5.8, 0.9))))
            answer = min(800, max(4, round(dice.lognormvariate(4.8, 0.8))))
            has_guide = guided and len(found) % 2 == 1
            found.append(
                PlannedRequest(
                    at_s,
                    _words(dice, prompt),
                    answer,
                    "guided" if has_guide else "plain",
                    extras=GUIDES[len(found) // 2 % 2] if has_guide else None,
                )
            )
            at_s += dice.expovariate(rate)
        return found

    return plan


def _burst(guided: bool) -> Plan:
    def plan(dice: random.Random) -> list[PlannedRequest]:
        # Of a tier that waits: all are to be answered, as the other server does.
        return [
            PlannedRequest(
                0.0,
                _words(dice, 512),
                256,
                "guided" if guided and number % 2 else "burst",
                tier="batch",
                extras=GUIDES[number // 2 % 2] if guided and number % 2 else None,
            )
            for number in range(256)
        ]

    return plan


def _short_beside(long_tokens: int) -> Plan:
    """31 short ones that decode while a long context does; its prompt is computed before they come."""

    def plan(dice: random.Random) -> list[PlannedRequest]:
        longer = [PlannedRequest(0.0, _words(dice, long_tokens), 1500, "long")] if long_tokens else []
        wait_s = 9.0 if long_tokens else 0.0
        return [*longer, *(PlannedRequest(wait_s, _words(dice, 128), 256, "short") for _ in range(31))]

    return plan


def _turns(prefix_tokens: int, count: int) -> Plan:
    """Turns of 16 tokens on one prefix, which is the same in each call."""
    prefix = _words(random.Random(prefix_tokens), prefix_tokens)

    def plan(dice: random.Random) -> list[PlannedRequest]:
        return [
            PlannedRequest(0.6 * number, f"{prefix} {_words(dice, 16)}", 8, f"turn on {prefix_tokens}")
            for number in range(count)
        ]

    return plan


def parts(seconds: float) -> list[Part]:
    return [
        Part("one alone", _alone),
        *(Part(f"{rate:g} a second", _poisson(rate, seconds)) for rate in RATES),
        Part("half guided, 30 a second", _poisson(30.0, seconds, guided=True)),
        Part("burst of 256", _burst(guided=False)),
        Part("burst of 256, half guided", _burst(guided=True)),
        Part("31 short ones", _short_beside(0)),
        Part("31 short ones beside 100k", _short_beside(LONG_TOKENS)),
        Part("fill 1k", _turns(1000, 1), warms=True),
        Part("turns on 1k", _turns(1000, 8)),
        Part("fill 100k", _turns(LONG_TOKENS, 1), warms=True),
        Part("turns on 100k", _turns(LONG_TOKENS, 8)),
    ]


def measure(server: Server, part: Part, clients: int) -> Seen:
    plan = part.plan(random.Random(part.name))  # the same for every server
    target = Target(server.url, server.model, tells_tier=server.tells_stages)
    stages, processor = _stage_sums(server), seconds_by_process(server.pid)
    sent = send_from(target, plan, min(clients, len(plan)))
    more, used = _stage_sums(server), seconds_by_process(server.pid)
    if sent.errors:
        print(f"{server.name}, {part.name}: {len(sent.errors)} failed: {sent.errors[0]}", flush=True)
    return Seen(
        server.name,
        part.name,
        sent.duration_s,
        [_row(each) for each in sent.results],
        {stage: 1000 * (total - stages.get(stage, 0.0)) / len(plan) for stage, total in more.items()},
        {name: total - processor.get(name, 0.0) for name, total in used.items()},
    )


def _row(result: RequestResult) -> dict[str, Any]:
    kept = asdict(result)
    gaps_s = kept.pop("gaps_s")
    return {
        **{name: kept[name] for name in ("kind", "first_token_s", "ended_s", "longest_gap_s", "error")},
        **{name: kept[name] for name in ("completion_tokens", "prompt_tokens", "cached_tokens", "pieces")},
        "token_s": sum(gaps_s) / len(gaps_s) if gaps_s else None,
        "silent_from_s": _silent_from_s(result),
    }


def _silent_from_s(result: RequestResult) -> float | None:
    """When the longest gap began; gaps are told by the token, and a piece may hold several."""
    if not result.gaps_s or result.first_token_s is None:
        return None
    longest = max(result.gaps_s)
    before_s = sum(result.gaps_s[: result.gaps_s.index(longest)])
    return result.first_token_s + before_s * result.longest_gap_s / longest if longest else None


def _stage_sums(server: Server) -> dict[str, float]:
    if not server.tells_stages:
        return {}
    return scrape(f"{server.url}/metrics").by("stage", "inflight_stage_seconds_sum")


@contextmanager
def our_stack(folder: Path, model: Path, precision: str, runtime: dict[str, str]) -> Iterator[Server]:
    engine = {
        **RANDOM_WEIGHTS,
        "inflight_precision": precision,
        "inflight_max_sequence_tokens": str(SEQUENCE_TOKENS),
        **runtime,
    }
    stack = start_stack(folder, engine, str(model), folder / "data", embeddings=False)
    try:
        wait_until_ready(stack)
        yield Server("inflight", stack.url, stack.model, stack.process.pid, tells_stages=True)
    except BaseException:
        print(stack.output()[-6000:])
        raise
    finally:
        stack.end()


@contextmanager
def vllm(python: str, model: Path, precision: str) -> Iterator[Server]:
    with running_vllm(python, model, SEQUENCE_TOKENS, precision) as (url, pid):
        yield Server("vLLM", url, str(model), pid)


def run(server: Server, wanted: Sequence[Part], clients: int) -> Iterator[Seen]:
    measure(server, Part("warm-up", _poisson(10.0, 3.0)), clients)
    for part in wanted:
        seen = measure(server, part, clients)
        if not part.warms:
            yield seen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--vllm", help="the Python interpreter that has vLLM")
    parser.add_argument("--only", default="", help="parts whose names contain one of these, comma-separated")
    parser.add_argument("--precision", default="bf16", choices=("bf16", "fp8"))
    parser.add_argument("--seconds", type=float, default=12.0, help="of each rate")
    parser.add_argument("--clients", type=int, default=4, help="processes that send")
    parser.add_argument("--engine", action="append", default=[], help="NAME=VALUE of the engine's parameters")
    parser.add_argument("--without-ours", action="store_true", help="ask vLLM only")
    parser.add_argument("--keep", type=Path, help="where to write the measurements, as JSON")
    parser.add_argument("--draw", type=Path, help="show the measurements in such a file, and measure nothing")
    parser.add_argument("--plots", type=Path, default=Path("docs/plots"), help="where to write the plots")
    asked = parser.parse_args()
    if asked.draw:
        kept = [Seen(**each) for each in json.loads(asked.draw.read_text())]
        show(kept)
        draw(kept, asked.plots)
        return
    names = [name for name in asked.only.split(",") if name]
    wanted = [part for part in parts(asked.seconds) if not names or any(name in part.name for name in names)]
    if not wanted:
        sys.exit(f"no part has such a name; there are: {', '.join(part.name for part in parts(1.0))}")
    seen: list[Seen] = []
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(Path(folder) / "llama-8b")
        runtime = dict(each.split("=", 1) for each in asked.engine)
        if runtime.get("inflight_runtime") == "synthetic":
            (model / "model.safetensors").touch()  # asked for, and not read
        servers = [] if asked.without_ours else [our_stack(Path(folder), model, asked.precision, runtime)]
        servers += [vllm(asked.vllm, model, asked.precision)] if asked.vllm else []
        for starting in servers:
            begin = time.monotonic()
            with starting as server:
                print(f"{server.name}: ready after {time.monotonic() - begin:.0f} s", flush=True)
                for each in run(server, wanted, asked.clients):
                    seen.append(each)
                    show([each])
                    if asked.keep:
                        asked.keep.write_text(json.dumps([asdict(one) for one in seen]))
    show(seen)


if __name__ == "__main__":
    main()
