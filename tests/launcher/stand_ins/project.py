"""A project with the smallest models that a stack can have: a drop-in backend and an ensemble."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

ENGINE_CONFIG = """
name: "tensorrt_llm"
backend: "tensorrtllm"
max_batch_size: 1
input [ { name: "x", data_type: TYPE_INT32, dims: [ 1 ] } ]
output [ { name: "y", data_type: TYPE_STRING, dims: [ 1 ] } ]
parameters { key: "gpt_model_path" value: { string_value: "/models/engine" } }
parameters { key: "kept" value: { string_value: "as it was" } }
"""

ENSEMBLE_CONFIG = """
name: "ensemble"
platform: "ensemble"
max_batch_size: 1
input [ { name: "x", data_type: TYPE_INT32, dims: [ 1 ] } ]
output [ { name: "y", data_type: TYPE_STRING, dims: [ 1 ] } ]
ensemble_scheduling { step [ {
  model_name: "tensorrt_llm"
  model_version: -1
  input_map { key: "x" value: "x" }
  output_map { key: "y" value: "y" }
} ] }
"""

# Answers every request with what it was told and where it runs.
BACKEND = """
import json, os, subprocess, sys
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self.facts = {key: value["string_value"] for key, value in parameters.items()}
        self.facts["prefix"] = sys.prefix
        if self.facts.get("inflight_runtime") == "synthetic":
            raise ValueError("the weights are made of cheese")
        print("10:00:00 tensorrt_llm INFO loading: reading poems: 1 of 2", file=sys.stderr, flush=True)
        self.child = subprocess.Popen(["sleep", "1000"])

    def execute(self, requests):
        answer = np.array([[json.dumps(self.facts).encode()]], dtype=object)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", answer)]) for _ in requests]

    def finalize(self):
        self.child.kill()
"""


def write_project(root: Path) -> Path:
    for repository, model, config in (
        ("model_repository", "tensorrt_llm", ENGINE_CONFIG),
        ("ensembles", "ensemble", ENSEMBLE_CONFIG),
    ):
        (root / repository / model / "1").mkdir(parents=True)
        (root / repository / model / "config.pbtxt").write_text(config)
    backend = root / "python_backend" / "backends" / "tensorrtllm"
    backend.mkdir(parents=True)
    (backend / "model.py").write_text(BACKEND)
    return root


def write_checkpoint(directory: Path) -> Path:
    directory.mkdir(parents=True)
    for name in ("config.json", "tokenizer.json", "model.safetensors"):
        (directory / name).write_text("{}")
    return directory
