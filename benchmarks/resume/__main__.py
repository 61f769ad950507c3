"""Streams cut at random tokens, a router killed meanwhile, and what keeping a chunk costs."""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

import uvloop
from rich.console import Console

from benchmarks.resume import chunk_costs, cut_streams
from benchmarks.resume.routers import running_routers
from benchmarks.stack import running_stack
from launcher.console import StackConsole
from launcher.packaging.models.checkpoint import resolve_checkpoint
from launcher.settings import StackSettings
from tests.router.control.peers.redis_server import running_redis


def main() -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.resume", description=__doc__)
    parser.add_argument("--streams", type=int, default=1000)
    parser.add_argument("--max-tokens", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--costs-only", action="store_true", help="only the cost of a chunk")
    asked = parser.parse_args()
    with running_redis() as redis:
        for how, streams, cost_us in uvloop.run(chunk_costs.measure(redis.url)):
            print(f"a chunk {how:24} {streams:2} streams at once {cost_us:6.1f} us")
        if asked.costs_only:
            return
        usual = StackSettings()
        checkpoint = resolve_checkpoint(usual.model, usual.data_dir, StackConsole(Console())).directory
        with (
            TemporaryDirectory() as folder,
            running_stack(embeddings=False) as stack,
            running_routers(stack, checkpoint, Path(folder), redis.url) as routers,
        ):
            work = cut_streams.run(stack, routers, asked.streams, asked.max_tokens, asked.seed)
            result = uvloop.run(work)
    print(f"{result.streams} streams, {result.cuts} connections cut, one of two routers killed")
    print(f"the text of a run without faults {result.same}")
    print(f"events without gap or repetition {result.in_order}")
    print(f"billed once, for what was sent   {result.billed_once}")
    print(f"errors that clients saw          {len(result.failed)}  {result.failed[:3] or ''}")
    print(f"longest silence {result.longest_gap_s:.1f} s; all of it took {result.took_s:.0f} s")
    print(f"the engine was idle {result.idle_after_s:.1f} s after the router's death, all answers included")


if __name__ == "__main__":
    main()
