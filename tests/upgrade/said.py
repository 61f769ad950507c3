"""Run in the checkout of a version: what its router says to Triton, and the tensors it knows, as JSON.

What is used here of the router and of `wire` is the same in this version and the one before.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

from python_backend.wire import tensors
from python_backend.wire.tiers import Tier
from router.core.generation import GenerationCall
from router.core.manifest import Kind, Manifest
from router.store import migrations
from router.triton.messages import GenerateRequests, configure_request, report_request, stop_request

PIPELINE, ENGINE = "ensemble", "tensorrt_llm"
MODELS = {
    "preprocessing": tensors.PREPROCESSING,
    "tensorrt_llm": tensors.TENSORRT_LLM,
    "postprocessing": tensors.POSTPROCESSING,
    "ensemble": tensors.ENSEMBLE,
}
CALL: dict[str, Any] = {"request_id": "of-a-version", "prompt": "Name the capital of France.", "seed": 7}
CALLS: dict[str, dict[str, Any]] = {
    "usual": {"max_tokens": 6},
    "sampled": {
        "max_tokens": 4,
        "temperature": 0.5,
        "top_k": 3,
        "top_p": 0.9,
        "min_tokens": 2,
        "stop": ("a",),
    },
    "without end": {"max_tokens": 5, "ignore_eos": True, "tier": "batch"},
    "logged": {"max_tokens": 3, "top_log_probs": 2, "logit_bias": {"11": -5.0}},
    "guided": {"max_tokens": 8, "guide": ("regex", "[a-c]{3}")},
    "of ids": {"max_tokens": 3, "prompt": "", "prompt_ids": (1, 2, 3)},
}


def main() -> None:
    encoder = GenerateRequests(PIPELINE)
    requests = {name: encoder.encode(GenerationCall(**{**CALL, **each})) for name, each in CALLS.items()}
    controls = {
        "stop": stop_request(ENGINE, "of-a-version"),
        "report": report_request(ENGINE),
        "configure": configure_request(ENGINE, {Tier.INTERACTIVE: 50.0}),
    }
    said = {
        "schema": max(path.name[1:5] for path in Path(*migrations.__path__).glob("versions/r????_*.py")),
        "release": json.loads(Manifest("tiny", 1, Kind.TEXT, ("ensemble",)).to_json()),
        "contract": {name: shown(each) for name, each in MODELS.items()},
        "requests": {name: text(each) for name, each in requests.items()},
        "controls": {name: text(each.SerializeToString()) for name, each in controls.items()},
    }
    json.dump(said, sys.stdout, indent=1)


def shown(contract: tensors.ModelContract) -> dict[str, dict[str, str]]:
    return {
        "inputs": {each.name: each.dtype for each in contract.inputs},
        "optional": {each.name: each.dtype for each in contract.inputs if each.optional},
        "outputs": {each.name: each.dtype for each in contract.outputs},
    }


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


if __name__ == "__main__":
    main()
