"""The table of docs/releases.md, its plot and its goals: `python -m benchmarks.rollout_table`.

On two idle cores it takes about ten minutes. What is simulated goes to the file of `--keep`, from which the
next run continues; `--runs` takes fewer of each. `--docs docs/releases.md` writes the table there.
"""

from __future__ import annotations

import json
import os
import sys
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.documented_tables import markdown, write_between_marks
from benchmarks.plots import Plots
from benchmarks.rollouts import RATES, Cell, Ended, at, several, share
from router.control.releases.canary import Verdict

PART = 12
# Many samples a run, which say the same each time.
MOST_AT_HIGH_RATE = 36
PAST = 1000
Found = Mapping[Cell, Sequence[Ended]]


@dataclass(frozen=True)
class Row:
    """One kind of canary, by the rate of requests, and how it should end."""

    what: str
    goal: Verdict
    machines: tuple[str, ...] = ("quiet",)
    slower: float = 1.0
    errors: float = 0.0
    is_rehearsed: bool = True
    mirror_per_s: float = 0.0
    rates: Sequence[float] = RATES
    runs: int = 60

    def cells(self, rate: float) -> list[Cell]:
        rest = (self.slower, self.errors, self.is_rehearsed, PAST, self.mirror_per_s)
        return [Cell(rate, machine, *rest) for machine in self.machines] if rate in self.rates else []

    def ended(self, rate: float, found: Found) -> list[Ended]:
        return [each for cell in self.cells(rate) for each in found.get(cell, ())]


FEW = (0.5, 3.0)
NOISY, BOTH = ("noisy",), ("quiet", "noisy")
GOOD, BAD, HELD = Verdict.PROMOTE, Verdict.ROLL_BACK, Verdict.WAIT
FEW_RUNS = 36
COPIED = "with `--mirror 1/s`"
ROWS = (
    Row("identical, quiet", GOOD),
    Row("identical, noisy", GOOD, NOISY),
    Row("1.1 times slower, quiet", GOOD, slower=1.1),
    Row("1.1 times slower, noisy", GOOD, NOISY, 1.1),
    Row("1.25 times slower: the tolerance itself", HELD, BOTH, 1.25, runs=24),
    Row("1.5 times slower, quiet", BAD, slower=1.5),
    Row("1.5 times slower, noisy", BAD, NOISY, 1.5),
    Row("2 times slower, quiet", BAD, slower=2.0),
    Row("2 times slower, noisy", BAD, NOISY, 2.0),
    Row("2 times slower, but only under load, quiet", BAD, slower=2.0, is_rehearsed=False),
    Row("2 times slower, but only under load, noisy", BAD, NOISY, 2.0, is_rehearsed=False),
    Row("4 times slower, quiet and noisy", BAD, BOTH, 4.0),
    Row("5 % errors, quiet", BAD, errors=0.05, runs=96),
    Row("1 % errors, quiet", BAD, errors=0.01, runs=96),
    Row("0.5 % errors, quiet", BAD, errors=0.005, runs=96),
    Row(f"identical, quiet, {COPIED}", GOOD, ("quiet",), 1.0, 0.0, False, 1.0, FEW, FEW_RUNS),
    Row(f"identical, noisy, {COPIED}", GOOD, NOISY, 1.0, 0.0, False, 1.0, FEW, FEW_RUNS),
    Row(f"1.1 times slower, noisy, {COPIED}", GOOD, NOISY, 1.1, 0.0, False, 1.0, FEW, FEW_RUNS),
    Row(
        f"1.5 times slower under load, quiet, {COPIED}", BAD, ("quiet",), 1.5, 0.0, False, 1.0, FEW, FEW_RUNS
    ),
    Row(f"1.5 times slower under load, noisy, {COPIED}", BAD, NOISY, 1.5, 0.0, False, 1.0, FEW, FEW_RUNS),
    Row(f"5 % errors, quiet, {COPIED}", BAD, ("quiet",), 1.0, 0.05, False, 1.0, FEW, FEW_RUNS),
)
WORDS = {GOOD: "promoted", BAD: "rolled back", HELD: "held"}
PLOTTED = (5, 6, 9, 10, 12)


def jobs_of(rows: Sequence[Row], most_runs: int) -> list[tuple[Cell, range]]:
    """The first runs of all before the next ones of any: the table is whole early."""
    wanted = {
        cell: min(row.runs, most_runs, MOST_AT_HIGH_RATE if cell.rate >= 200 else row.runs)
        for row in rows
        for rate in RATES
        for cell in row.cells(rate)
    }
    return [
        (cell, range(begin, min(begin + PART, runs)))
        for begin in range(0, max(wanted.values()), PART)
        for cell, runs in wanted.items()
        if begin < runs
    ]


def kept_in(file: Path | None) -> Iterator[tuple[Cell, int, list[Ended]]]:
    """With the first seed of each part."""
    for line in file.read_text().splitlines() if file is not None and file.exists() else ():
        kept = json.loads(line)
        yield Cell(**kept["cell"]), kept["seeds"][0], [Ended(**each) for each in kept["ended"]]


def simulate(jobs: Sequence[tuple[Cell, range]], keep: Path | None, processes: int | None = None) -> Found:
    found: dict[Cell, list[Ended]] = {}
    done = set()
    for cell, begin, ended in kept_in(keep):
        done.add((cell, begin))
        found.setdefault(cell, []).extend(ended)
    left = [job for job in jobs if (job[0], job[1].start) not in done]
    with ProcessPoolExecutor(processes) as pool:
        futures = {pool.submit(several, job): job for job in left}
        for number, future in enumerate(as_completed(futures), 1):
            (cell, seeds), ended = futures[future], future.result()
            found.setdefault(cell, []).extend(ended)
            if keep is not None:
                told = [asdict(each) for each in ended]
                kept = {"cell": asdict(cell), "seeds": [seeds.start, seeds.stop], "ended": told}
                with keep.open("a") as file:
                    file.write(json.dumps(kept) + "\n")
            print(f"{number} of {len(left)}", end="\r", file=sys.stderr)
    return found


def text(row: Row, ended: Sequence[Ended]) -> str:
    """How many ended as they should, when (median / 95th percentile), and what became of the rest."""
    if not ended:
        return "-"
    those = [each for each in ended if each.verdict == row.goal.value]
    said = [f"{share(ended, row.goal):.0%}".replace("%", " %")]
    if those and row.goal is GOOD:
        said.append("in " + " / ".join(f"{at([e.seconds for e in those], q) / 60:.0f}" for q in (0.5, 0.95)))
        said.append("min")
    elif those and row.goal is BAD:
        requests = [each.requests for each in those]
        said.append("after " + " / ".join(f"{at(requests, q):,.0f}" for q in (0.5, 0.95)))
    others = {each: share(ended, each) for each in WORDS if each is not row.goal}
    rest = [f"{part:.1%} {WORDS[each]}".replace("%", " %") for each, part in others.items() if part]
    return ", ".join([" ".join(said), *rest])


def goals(rows: Sequence[Row], found: Found) -> list[tuple[str, str, bool]]:
    """Each with the worst that was seen of it."""

    def worst(chosen: Sequence[Row], verdict: Verdict) -> float:
        every = [row.ended(rate, found) for row in chosen for rate in row.rates]
        return max((share(ended, verdict) for ended in every if ended), default=0.0)

    def latest(chosen: Sequence[Row]) -> float:
        every = [[each.requests for each in row.ended(rate, found)] for row in chosen for rate in row.rates]
        return max((at(each, 0.95) for each in every if each), default=0.0)

    slow = [row for row in rows if row.slower >= 1.5]
    same = [row for row in rows if row.slower == 1 and not row.errors]
    missing = 1 - min(share(e, GOOD) for row in same for rate in row.rates if (e := row.ended(rate, found)))
    twice, under_load = (
        latest([row for row in rows if row.slower == 2 and row.is_rehearsed is is_rehearsed])
        for is_rehearsed in (True, False)
    )
    failing = latest([row for row in rows if row.errors == 0.05 and not row.mirror_per_s])
    promoted, refused = worst(slow, GOOD), worst(same, BAD)
    return [
        ("1.5 times slower or worse: promoted in under 1 %", f"{promoted:.1%}", promoted < 0.01),
        ("identical: rolled back in under 1 %", f"{refused:.1%}", refused < 0.01),
        ("identical: promoted in over 95 %", f"{1 - missing:.1%}", missing < 0.05),
        ("2 times slower: 95 of 100 rolled back within 30 requests", f"{twice:,.0f}", twice <= 30),
        ("2 times slower under load alone: the same", f"{under_load:,.0f}", under_load <= 30),
        ("5 % errors: 95 of 100 rolled back within 100 requests", f"{failing:,.0f}", failing <= 100),
    ]


def main() -> None:
    parser = ArgumentParser(prog="python -m benchmarks.rollout_table", description=__doc__)
    parser.add_argument("--runs", type=int, default=200, help="at most, for each figure")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="JSON lines with the results so far")
    parser.add_argument("--plots", type=Path, metavar="DIRECTORY")
    parser.add_argument("--docs", type=Path, metavar="PAGE", help="the page to write the table into")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    asked = parser.parse_args()
    found = simulate(jobs_of(ROWS, asked.runs), asked.keep, asked.processes)
    table = markdown(
        ("canary", "goal", *(f"{rate:g} /s" for rate in RATES)),
        ([row.what, WORDS[row.goal], *(text(row, row.ended(rate, found)) for rate in RATES)] for row in ROWS),
    )
    met = [(goal, figure, "met" if is_met else "MISSED") for goal, figure, is_met in goals(ROWS, found)]
    text_of_all = f"{table}\n\n{markdown(('goal', 'the worst of all cells', ''), met)}"
    print(text_of_all)
    if asked.docs is not None:
        write_between_marks(asked.docs, "characteristics", text_of_all)
    series = {
        ROWS[number].what: [at([e.requests for e in ROWS[number].ended(rate, found)], 0.5) for rate in RATES]
        for number in PLOTTED
    }
    title = "Requests that a bad canary got before it was rolled back (median of simulated rollouts)"
    groups = [f"{rate:g} requests/s" for rate in RATES]
    Plots(asked.plots).bars("canaries", title, "requests", groups, series, logarithmic=True)


if __name__ == "__main__":
    main()
