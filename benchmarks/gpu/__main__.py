"""`python -m benchmarks.gpu`: every figure that docs/performance.md gives for a GPU, in one run of minutes.

The engine alone at seven points, the whole stack against it, and the profile of a step. Weights are random,
made on the GPU. With `--json FILE` the engine's figures are kept, for `benchmarks.gpu.plot`.
"""

from __future__ import annotations

import argparse
import subprocess
import sys

from benchmarks.gpu.throughput import add_engine_arguments

PARTS = ("throughput", "stack", "profile")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add_engine_arguments(parser)
    parser.add_argument("--parts", default=",".join(PARTS), help="some of them, comma-separated")
    parser.add_argument("--json", help="where to keep the figures of the engine alone")
    asked = parser.parse_args()
    unknown = set(asked.parts.split(",")) - set(PARTS)
    if unknown:
        sys.exit(f"unknown part {min(unknown)}; there are: {', '.join(PARTS)}")
    step_tokens = ["--step-tokens", str(asked.step_tokens)]
    options = {
        "throughput": [*step_tokens, *(["--json", asked.json] if asked.json else [])],
        "stack": step_tokens,
        "profile": step_tokens,
    }
    failed = []
    for part in asked.parts.split(","):
        print(f"\n== {part}", flush=True)
        command = [sys.executable, "-W", "ignore", "-m", f"benchmarks.gpu.{part}", *options[part]]
        if subprocess.run(command, check=False).returncode:
            failed.append(part)
    sys.exit(f"missed or failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
