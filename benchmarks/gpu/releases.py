"""`python -m benchmarks.gpu.releases`: a release of an 8B model rolled out, killed and revived on one GPU."""

from __future__ import annotations

import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import psutil

from benchmarks.gpu.llama_8b import write_checkpoint
from benchmarks.releases import Event, history, inflight
from benchmarks.stack import RunningStack, start_stack, wait_until_ready
from benchmarks.traffic import Answered, Traffic, completion, traffic

PER_S, TOKENS = 10.0, 64
PLAN = ("--steps", "10%,100%", "--min-requests", "20", "--min-duration", "20s")
# Both fit beside each other; random weights, for nobody reads the answers.
ENGINE = {"inflight_weights": "random", "kv_cache_free_gpu_mem_fraction": "0.3"}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = write_checkpoint(Path(folder) / "llama-8b")
        stack = start_stack(Path(folder), ENGINE, str(model), Path(folder) / "data")
        try:
            wait_until_ready(stack)
            report(stack, model)
        except BaseException:
            print(stack.output()[-6000:])
            raise
        finally:
            stack.stop()


def report(stack: RunningStack, model: Path) -> None:
    began_s = time.monotonic()
    inflight(stack, "add", stack.model, str(model), "--set", "inflight_precision=fp8")
    inflight(stack, "load", f"{stack.model}@2")
    print(f"added and loaded in {time.monotonic() - began_s:.1f} s")
    with traffic(stack.url, completion(stack.model, TOKENS), PER_S) as running:
        running.wait_for(50)
        inflight(stack, "canary", f"{stack.model}@2", *PLAN)
        ended = wait_for(stack, "promote", "rollback")
        running.wait_for(50)
        killed_s = kill_engine(stack, f"{stack.model}.2.tensorrt_llm")
        running.wait_for(100, timeout_s=120)
        inflight(stack, "rollback", stack.model)
        running.wait_for(50)
        events = history(stack, running.began_s)
    show(running, events, killed_s - running.began_s)
    is_met = ended == "promote" and not running.errors
    print("promoted, and no request failed" if is_met else f"MISSED: {ended}, {running.errors[:3]}")
    sys.exit(not is_met)


def wait_for(stack: RunningStack, *wanted: str, limit_s: float = 150.0) -> str:
    deadline_s = time.monotonic() + limit_s
    while time.monotonic() < deadline_s:
        for event in history(stack, 0.0):
            if event.what in wanted:
                return event.what
        time.sleep(1)
    raise TimeoutError(f"none of {wanted} came about")


def kill_engine(stack: RunningStack, model: str) -> float:
    """The process in Triton that has the model; when that was."""
    for process in psutil.Process(stack.process.pid).children(recursive=True):
        command = process.cmdline()
        if len(command) > 1 and f"/{model}/" in command[1]:
            os.kill(process.pid, signal.SIGKILL)
            return time.time()
    raise LookupError(f"no process of {model}")


def show(running: Traffic, events: list[Event], killed_s: float) -> None:
    for version in ("1", "2"):
        answered = running.of(version)
        first, between = milliseconds(answered, "first_token_s"), milliseconds(answered, "between_tokens_s")
        failed = len([each for each in answered if each.error])
        print(
            f"release {version}: {len(answered)} requests, {failed} failed, "
            f"first token {first}, {between} a token"
        )
    for event in events:
        if event.at_s >= 0:
            print(f"{event.at_s:6.1f} s  @{event.version}  {event.what}  {event.reason}")
    hit = [each for each in running.answered if each.at_s <= killed_s <= each.at_s + each.took_s]
    longest_s = max((each.took_s for each in running.answered if each.at_s > killed_s - 10), default=0.0)
    print(
        f"killed at {killed_s:.1f} s with {len(hit)} streams under way; "
        f"longest answer after it {longest_s:.1f} s"
    )


def milliseconds(answered: list[Answered], name: str) -> str:
    known = [value for each in answered if (value := getattr(each, name)) is not None]
    return f"{median(known) * 1000:.1f} ms" if known else "-"


if __name__ == "__main__":
    main()
