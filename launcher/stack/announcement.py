"""What the user is told once a stack is ready: its addresses, and a first request to try."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from launcher.console import own_command

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from launcher.console import StackConsole
    from launcher.stack.triton_server import TritonServer

EXAMPLE_QUESTION = "Name the capital of France."


def announce(
    console: StackConsole,
    url: str,
    model: str,
    tritons: Sequence[TritonServer],
    logs: Path,
    took_s: float,
    computes_on: str | None = None,
    embeddings: str | None = None,
    embeddings_precision: str = "",
    grpc_url: str | None = None,
    needs_key: bool = False,
) -> None:
    question = [{"role": "user", "content": EXAMPLE_QUESTION}]
    body = json.dumps({"model": model, "max_tokens": 100, "messages": question})
    console.say("")
    console.say(f"Inflight is ready after {took_s:.1f} s.", style="bold green")
    console.say(f"  address  {url}/v1  (OpenAI-compatible)")
    console.say(f"  console  {url}/ui  (in a browser)")
    kind = f"embeddings, {embeddings_precision}" if embeddings_precision else "embeddings"
    console.say(f"  models   {model}{f', {embeddings} ({kind})' if embeddings else ''}")
    if computes_on:
        console.say(f"  computes on {computes_on}")
    if grpc_url:
        console.say(f"  gRPC     {grpc_url}  (KServe v2, for Triton's clients)")
    for number, triton in enumerate(tritons):
        label = "and" if number else "Triton"
        console.say(f"  {label:<8} {triton.door.url}  (gRPC), {triton.metrics_url}")
    if not needs_key:
        console.say(
            f"  keys     none yet: anyone on this machine is served ({own_command()} keys create --help)"
        )
    console.say(f"  logs     {logs}")
    console.say("")
    console.say("Try it:")
    key = ' -H "Authorization: Bearer $INFLIGHT_API_KEY"' if needs_key else ""
    console.say(f"  curl {url}/v1/chat/completions{key} -H 'Content-Type: application/json' -d '{body}'")
    console.say(f"  {own_command()} chat --url {url}")
    console.say("")
    console.say("Ctrl-C finishes the requests in flight and stops everything.")
