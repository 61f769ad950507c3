"""Run as a script in the place of the engine's preparation: what it does is chosen by the precision."""

from __future__ import annotations

import json
import os
import signal
import sys
import time


def main() -> int:
    parameters = json.loads(sys.argv[1])
    precision = parameters.get("inflight_precision", "int8")
    for done in range(3):
        print(json.dumps({"stage": "packing", "precision": precision, "done": done, "total": 2}), flush=True)
    print(json.dumps({"stage": "compiling"}), flush=True)
    if precision == "bf16":
        print("invalid_request: parameter inflight_precision is 'bf16'; allowed: int8", file=sys.stderr)
        return 2
    if precision == "fp32":
        print("unsupported: this model is a poem, which this engine does not know", file=sys.stderr)
        return 1
    if precision == "int4":
        time.sleep(600)
    print(json.dumps({"notice": "Computing on the CPU: there is a GPU, but it is made of cheese"}))
    print(json.dumps({"inflight_device": "cpu", "computes_on": f"the CPU, {precision}"}))
    print(json.dumps({"told": parameters}))
    return 0


if __name__ == "__main__":
    if os.environ.get("PREPARE_DIES"):
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(main())
