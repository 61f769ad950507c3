"""`python -m benchmarks.silicon_profiles WHEEL`: profiles of GPUs that are not here, from measured tables.

The wheel is aiconfigurator 0.4.0. Where a replica was measured with this engine too, the ratio of both is how
much longer the derived ones of the same precision are taken to need.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from simulator.planning.capacity import bound_per_s
from simulator.planning.profiles import FOLDER, Profile, derived_profile, known_profiles, slowed, write
from simulator.planning.silicon import SiliconTables

PARALLEL = {"llama-8b": (1, 2), "llama-70b": (1, 2, 4, 8)}
# What both are compared at: tokens of a prompt and of an answer.
LENGTHS = (1024.0, 256.0)


def derived(tables: SiliconTables) -> list[Profile]:
    found = [
        derived_profile(tables, gpu, model, precision, parallel)
        for model, sizes in PARALLEL.items()
        for gpu in sorted(tables.gpus)
        for precision in ("bf16", "fp8")
        for parallel in sizes
    ]
    return [each for each in found if each is not None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    profiles = derived(SiliconTables(parser.parse_args().wheel))
    times = {}
    for seen in known_profiles():
        if seen.is_measured:
            same = next(
                each
                for each in profiles
                if (each.gpu, each.name, each.model) == (seen.gpu, seen.name, seen.model)
            )
            times[seen.precision] = bound_per_s(same.cost, *LENGTHS) / bound_per_s(
                seen.cost, *LENGTHS, seen.even_context
            )
            print(f"{seen.name}: {times[seen.precision]:.2f} times the value of the tables")
    write([slowed(each, times[each.precision]) for each in profiles], FOLDER / "silicon.json")


if __name__ == "__main__":
    main()
