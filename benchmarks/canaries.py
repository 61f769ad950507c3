"""`python -m benchmarks.canaries`: canaries that must go back and ones that must not, on one real stack.

Each is a second release of a model of its own, under traffic of its own. Several small ones are rolled out at
once; then the slow ones, each of which takes the whole machine, one after the other. On two idle cores all of
it takes about 20 minutes; after 25 it ends, whatever is undecided then. `--docs docs/releases.md` writes what
came of it there.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.documented_tables import markdown, write_between_marks
from benchmarks.releases import inflight, kill_engine, wait_for_end
from benchmarks.stack import RunningStack, start_stack, wait_until_ready
from benchmarks.text_checkpoint import SMOLLM2_135M, TINY, write_random_llama
from benchmarks.traffic import COMPLETIONS, Body, Traffic, traffic
from router.control.releases.records import Rollout, RolloutState

# As the stack's own, so that several of them fit beside each other, on a machine with a GPU too.
ENGINE = {"inflight_device": "cpu", "inflight_threads": "1", "max_tokens_in_paged_kv_cache": "8192"}
PROMPT_WORDS, TOKENS = 24, 16
IN_FLIGHT = 24  # more than a machine that keeps up ever has
# What a new user chose, and what decides as soon as it is known.
USUAL = ("--steps", "20%,50%,100%", "--min-requests", "20", "--min-duration", "20s")
SOON = ("--steps", "50%,100%", "--min-requests", "20", "--min-duration", "15s")
SLOWNESS = {"inflight_precision": "fp32", "inflight_threads": "1"}
STABLE_THREADS = {"inflight_threads": "2"}
IDENTICAL, SLOW_RUNS, ERROR_RUNS = 10, 3, 3
# The slow ones were promoted after 82 and 144 s before releases had to prove themselves.
MOST_S, MOST_SLOW_S = 300.0, 160.0
LIMIT_S = 1440.0  # and a minute for the start, the end and the last answers
DIES_EVERY_S = 15.0  # by then it is revived, as a rule
CONFIG = """
name: "calculator"
backend: "python"
max_batch_size: 8
input [ { name: "x", data_type: TYPE_FP32, dims: [ 1 ] } ]
output [ { name: "y", data_type: TYPE_FP32, dims: [ 1 ] } ]
"""
CALCULATOR = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "x")) for request in requests]

    def answer(self, given):
        x = given.as_numpy()
        if FAILS and int(x[0, 0]) % 20 == 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("something went wrong"))
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])
"""


Kind = tuple[str, float, str]  # what it is, requests a second, and the goal
ENDS = ("promoted", "rolled back", "undecided")


@dataclass(frozen=True)
class Case:
    """`goals` are the ends that it may have; the first release is the stable one."""

    what: str
    model: str
    paths: tuple[Path, Path]
    per_s: float
    plan: Sequence[str]
    goals: tuple[RolloutState, ...]
    parameters: tuple[Mapping[str, str], Mapping[str, str]] = field(default_factory=lambda: ({}, {}))
    is_text: bool = True
    dies: bool = False
    most_s: float = MOST_S

    @property
    def kind(self) -> Kind:
        goal = "never promoted" if RolloutState.RUNNING in self.goals else self.goals[0].value
        return self.what, self.per_s, goal

    @property
    def path(self) -> str:
        return COMPLETIONS if self.is_text else f"/v2/models/{self.model}/infer"

    @property
    def body(self) -> Body:
        return words(self.model) if self.is_text else number


@dataclass(frozen=True)
class Result:
    case: Case
    rollout: Rollout
    running: Traffic
    looked_s: float  # when nobody waited for its end any longer

    @property
    def is_good(self) -> bool:
        """Of a canary that goes back, users may see errors; of others, never."""
        state = self.rollout.state
        return state in self.case.goals and (state is not RolloutState.PROMOTED or not self.running.errors)

    @property
    def end(self) -> str:
        return self.rollout.state.value if self.rollout.ended_s else ENDS[-1]

    @property
    def seconds(self) -> float:
        return (self.rollout.ended_s or self.looked_s) - self.rollout.began_s

    @property
    def cells(self) -> tuple[str, ...]:
        met = self.running.of("2")
        return (
            self.case.what,
            f"{self.case.per_s:g}",
            self.end,
            f"{len(met)}",
            f"{sum(each.error is not None for each in met)}",
            f"{self.seconds:.0f}",
            self.rollout.reason,
        )


COLUMNS = ("canary", "requests/s", "ended", "met it", "failed", "seconds", "reason")


def words(model: str) -> Body:
    def body(number: int) -> dict[str, Any]:
        chance = random.Random(number)
        prompt = " ".join(f"w{chance.randrange(8192)}" for _ in range(PROMPT_WORDS))
        asked = {"model": model, "prompt": prompt, "max_tokens": TOKENS, "temperature": 0}
        return {**asked, "ignore_eos": True}

    return body


def number(number: int) -> dict[str, Any]:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [number]}]}


def write_calculator(directory: Path, *, fails: bool) -> Path:
    """A Triton model of one's own; the one that fails does so for one number in twenty."""
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(CALCULATOR.replace("FAILS", str(fails)))
    (directory / "config.pbtxt").write_text(CONFIG)
    return directory


def slow_cases(folder: Path) -> Iterator[Case]:
    """In fp32 on one thread: several times as slow as the stable release."""
    model = write_random_llama(folder / "shape-135m", SMOLLM2_135M)
    both = ((model, model), (STABLE_THREADS, SLOWNESS))
    kept, back = (RolloutState.ROLLED_BACK, RolloutState.RUNNING), (RolloutState.ROLLED_BACK,)
    for run in range(SLOW_RUNS):
        for name, per_s in (("seldom", 1.5), ("often", 3.0)):
            named, plan = f"slow-{name}-{run}", (*USUAL, "--no-rehearsal")
            yield Case("fp32, 1 thread", named, both[0], per_s, plan, kept, both[1], most_s=MOST_SLOW_S)
    rehearsed = ("fp32, 1 thread, rehearsed", "slow-rehearsed")
    yield Case(*rehearsed, both[0], 3.0, USUAL, back, both[1], most_s=MOST_SLOW_S)


def other_cases(folder: Path) -> Iterator[Case]:
    tiny = write_random_llama(folder / "tiny-again", TINY)
    for run in range(IDENTICAL):
        yield Case("identical", f"same-{run}", (tiny, tiny), 10.0, SOON, (RolloutState.PROMOTED,))
    back = (RolloutState.ROLLED_BACK,)
    good, bad = (write_calculator(folder / name, fails=name == "shaky") for name in ("steady", "shaky"))
    for run in range(ERROR_RUNS):
        yield Case("5 % errors", f"errors-{run}", (good, bad), 20.0, SOON, back, is_text=False)
    broken = write_random_llama(folder / "nan", TINY, gives_nan=True)
    yield Case("NaN in its weights", "nan", (tiny, broken), 5.0, SOON, back)
    yield Case("its engine dies", "dies", (tiny, tiny), 5.0, SOON, back, dies=True)


def run(stack: RunningStack, case: Case, deadline_s: float) -> Result:
    if time.monotonic() > deadline_s:
        raise TimeoutError("no time was left")
    for version, (path, given) in enumerate(zip(case.paths, case.parameters, strict=True), 1):
        chosen = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
        inflight(stack, "add", case.model, str(path), "--version", str(version), *chosen)
    inflight(stack, "load", f"{case.model}@1")
    inflight(stack, "promote", f"{case.model}@1")
    wait_until_served(stack, case)
    with traffic(stack.url, case.body, case.per_s, path=case.path, most_in_flight=IN_FLIGHT) as running:
        running.wait_for(5)
        inflight(stack, "canary", f"{case.model}@2", *case.plan)
        meanwhile = dying(stack, case.model) if case.dies else lambda rollout: None
        limit_s = max(0.0, min(case.most_s, deadline_s - time.monotonic()))
        ended, looked_s = wait_for_end(stack, case.model, limit_s, meanwhile), time.time()
    if ended.state.is_over:
        serving, idle = (2, 1) if ended.state is RolloutState.PROMOTED else (1, 2)
        inflight(stack, "unload", f"{case.model}@{idle}", "--no-wait")
        inflight(stack, "unload", f"{case.model}@{serving}", "--withdraw", "--no-wait")
    return Result(case, ended, running, looked_s)


def wait_until_served(stack: RunningStack, case: Case) -> None:
    """The router reads of it in the store."""
    for _ in range(100):
        answer = httpx.post(f"{stack.url}{case.path}", json=case.body(1), timeout=60)
        if answer.status_code == 200:
            return
        time.sleep(0.1)
    raise TimeoutError(f"{case.model} is not served: {answer.text}")


def dying(stack: RunningStack, model: str) -> Callable[[Rollout], None]:
    """Kills the canary's engine again and again, once it has traffic."""
    next_s = 0.0

    def kill(rollout: Rollout) -> None:
        nonlocal next_s
        if rollout.progress.step >= 0 and time.monotonic() >= next_s:
            next_s = time.monotonic() + DIES_EVERY_S
            with suppress(LookupError):
                kill_engine(stack, f"{model}.2.tensorrt_llm")

    return kill


def run_all(stack: RunningStack, cases: Sequence[Case], at_once: int, deadline_s: float) -> list[Result]:
    """Each is told of when it has ended."""
    found = []
    with ThreadPoolExecutor(at_once) as threads:
        futures = {threads.submit(run, stack, case, deadline_s): case for case in cases}
        for future in as_completed(futures):
            try:
                found.append(future.result())
            except Exception as error:  # the others go on
                print(f"{futures[future].model} could not be tried: {error}", flush=True)
            else:
                print(" | ".join(found[-1].cells), flush=True)
    return found


def kinds_of(cases: Sequence[Case], found: Sequence[Result]) -> list[tuple[str, ...]]:
    """How the canaries of each kind ended."""
    kinds = Counter(case.kind for case in cases)
    return [
        kind_cells(kind, planned, [each for each in found if each.case.kind == kind])
        for kind, planned in kinds.items()
    ]


def show(kinds: Sequence[tuple[str, ...]], found: Sequence[Result]) -> None:
    """Each canary, then each kind of them."""
    table, summary = Table(*COLUMNS), Table(*KIND_COLUMNS)
    for each in sorted(found, key=lambda each: each.case.kind):
        table.add_row(*each.cells)
    for cells in kinds:
        summary.add_row(*cells)
    for made in (table, summary):
        Console(width=200).print(made)


KIND_COLUMNS = ("canaries", "requests/s", "goal", "planned", *ENDS, "requests that met them", "seconds", "")


def kind_cells(kind: Kind, planned: int, found: Sequence[Result]) -> tuple[str, ...]:
    """With the fewest and the most requests that canaries of the kind got, and how long they took."""
    what, per_s, goal = kind
    is_met = len(found) == planned and all(each.is_good for each in found)
    return (
        *(what, f"{per_s:g}", goal, f"{planned}"),
        *(f"{sum(each.end == end for each in found)}" for end in ENDS),
        least_to_most([len(each.running.of("2")) for each in found]),
        least_to_most([each.seconds for each in found]),
        "met" if is_met else "MISSED",
    )


def least_to_most(values: Sequence[float]) -> str:
    return " to ".join(f"{each:.0f}" for each in sorted({min(values), max(values)})) if values else "-"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.canaries", description=__doc__)
    parser.add_argument("--at-once", type=int, default=2 * (os.cpu_count() or 1), help="of the small ones")
    parser.add_argument("--only", default="", help="cases whose name contains this, such as fp32")
    parser.add_argument(
        "--limit-s", type=float, default=LIMIT_S, help="cases undecided by then stay undecided"
    )
    parser.add_argument(
        "--docs", type=Path, metavar="PAGE", help="the page to write the table of all kinds into"
    )
    asked = parser.parse_args()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        small, slow = (
            [case for case in made(Path(folder)) if asked.only in case.what]
            for made in (other_cases, slow_cases)
        )
        model = write_random_llama(Path(folder) / "tiny", TINY)
        stack = start_stack(Path(folder), ENGINE, str(model), Path(folder) / "data", embeddings=False)
        try:
            wait_until_ready(stack)
            found = run_all(stack, small, asked.at_once, began_s + asked.limit_s)
            found += run_all(stack, slow, 1, began_s + asked.limit_s)
        except BaseException:
            print(stack.output()[-6000:])
            raise
        finally:
            stack.end()
    kinds = kinds_of([*small, *slow], found)
    show(kinds, found)
    if asked.docs is not None:
        write_between_marks(asked.docs, "canaries", markdown(KIND_COLUMNS, kinds))
    is_met = all(cells[-1] == "met" for cells in kinds)
    print("every goal met" if is_met else "a goal is MISSED")
    print(f"{time.monotonic() - began_s:.0f} s in all")
    sys.exit(not is_met)


if __name__ == "__main__":
    main()
