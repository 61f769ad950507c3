"""Real clients against a running stack, each in an environment of its own: `make clients`."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.stack import running_stack
from launcher.settings import StackSettings, default_data_dir
from tests.clients import table
from tests.clients.catalogue import Client, clients
from tests.clients.environments import ROOT, command_of
from tests.clients.table import Outcome

_LIMIT_S = 3600.0


def main() -> None:
    known = {client.name: client for client in clients()}
    options = _options(list(known))
    chosen = [known[name] for name in options.names or known]
    rows, failed = {}, []
    with _stack(options) as environment:
        for client in chosen:
            print(f"\n{client.title} ({client.package} {client.version})", flush=True)
            outcomes = outcomes_of(client, environment)
            today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
            rows[client.title] = table.row(client.title, client.version, outcomes, today)
            failed += [client.name] if any(outcome.problem for outcome in outcomes) else []
            if not options.no_table:
                table.PAGE.write_text(table.replaced(table.PAGE.read_text(), rows))
    print(f"\n{len(chosen) - len(failed)} of {len(chosen)} clients work{': not ' if failed else ''}", end="")
    print(", ".join(failed))
    sys.exit(1 if failed else 0)


def _options(known: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make clients", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"which ones; without any, all: {', '.join(known)}")
    parser.add_argument("--url", help="of a running stack's HTTP port; without it one is started")
    parser.add_argument("--grpc", default="127.0.0.1:8081", help="of its port for Triton's clients")
    parser.add_argument("--key", default="none-needed", help="of a stack that has keys")
    parser.add_argument("--tokenizer", help="a folder with the model's own, for tools that count tokens")
    parser.add_argument("--cases", type=int, default=5000, help="how many requests schemathesis makes up")
    parser.add_argument("--no-table", action="store_true", help="leave docs/clients.md as it is")
    options = parser.parse_args()
    unknown = set(options.names) - set(known)
    if unknown:
        parser.error(f"no client is called {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    return options


@contextmanager
def _stack(options: argparse.Namespace) -> Iterator[dict[str, str]]:
    """What tells clients where the stack is, and what is served there."""
    tokenizer = options.tokenizer or str(default_data_dir() / "models" / StackSettings().model)
    given = {
        "INFLIGHT_KEY": options.key,
        "INFLIGHT_CASES": str(options.cases),
        "INFLIGHT_TOKENIZER": tokenizer,
    }
    if options.url:
        yield {**os.environ, **given, **whereabouts(options.url, options.grpc, options.key)}
        return
    print("starting a stack", flush=True)
    with running_stack() as stack:
        yield {**os.environ, **given, **whereabouts(stack.url, stack.grpc_url, options.key)}


def whereabouts(url: str, grpc: str, key: str) -> dict[str, str]:
    """The first language model, and the first for embeddings, by what Triton's metadata say of them."""
    headers = {"Authorization": f"Bearer {key}"}

    def get(path: str) -> Any:
        with urllib.request.urlopen(
            urllib.request.Request(url + path, headers=headers), timeout=30
        ) as answer:
            return json.load(answer)

    names = [model["id"] for model in get("/v1/models")["data"]]
    outputs = {name: {each["name"] for each in get(f"/v2/models/{name}")["outputs"]} for name in names}
    model = next(name for name in names if "text_output" in outputs[name])
    embedder = next((name for name in names if "EMBEDDING" in outputs[name]), "")
    return {
        "INFLIGHT_URL": url,
        "INFLIGHT_GRPC": grpc,
        "INFLIGHT_MODEL": model,
        "INFLIGHT_EMBEDDER": embedder,
    }


def outcomes_of(
    client: Client, environment: dict[str, str], command: list[str] | None = None
) -> list[Outcome]:
    """Runs a client's file to its end, and reads what it has reported."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.jsonl"
        report.touch()
        try:
            own, place = (command, ROOT) if command else command_of(client)
            ended = subprocess.run(
                own,
                cwd=place,
                env={**environment, "INFLIGHT_REPORT": str(report), "PYTHONPATH": str(ROOT)},
                stdin=subprocess.DEVNULL,
                timeout=_LIMIT_S,
                check=False,
            ).returncode
        except (OSError, subprocess.SubprocessError) as error:
            return [Outcome("start", str(error))]
        told = [json.loads(line) for line in report.read_text().splitlines()]
    outcomes = [Outcome(each["use"], each["problem"]) for each in told]
    has_failed = any(outcome.problem for outcome in outcomes)
    if ended != 0 and not has_failed:
        outcomes.append(Outcome("start" if not outcomes else "the rest", f"it ended with status {ended}"))
    return outcomes


if __name__ == "__main__":
    main()
