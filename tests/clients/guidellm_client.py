"""GuideLLM, a load generator of the vLLM project."""

# /// script
# requires-python = ">=3.10"
# dependencies = ["guidellm==0.8.1"]
# ///

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from tests.clients.uses import STACK, check, main, run, use


@use("benchmark of chat completions")
def benchmark() -> None:
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "benchmarks.json"
        run(
            *("guidellm", "run", "--backend", f"kind=openai_http,target={STACK.url},model={STACK.model}"),
            *("--profile", "kind=concurrent,streams=2", "--constraint", "kind=max_requests,count=4"),
            *("--data", "kind=synthetic_text,prompt_tokens=20,output_tokens=8"),
            *("--tokenizer", f"kind=huggingface_auto,model={STACK.tokenizer}"),
            *("--output", f"kind=json,path={output}", "--disable-console-interactive"),
            timeout_s=600,
        )
        totals = json.loads(output.read_text())["benchmarks"][0]["metrics"]["request_totals"]
    # Of the four it may leave out the last, which ends with the run.
    check(totals["successful"] >= 3 and totals["errored"] == totals["incomplete"] == 0, totals)


if __name__ == "__main__":
    main()
