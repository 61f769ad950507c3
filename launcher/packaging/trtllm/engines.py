"""What a folder that a config names as its engine holds, as far as it can be seen from here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from launcher.packaging.trtllm.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from launcher.packaging.trtllm.edition import Edition

MODEL = "tensorrt_llm"


def check_engine_dir(folder: Path, edition: Edition) -> Iterator[Finding]:
    if not folder.is_dir():
        what = f"gpt_model_path {folder} is not on this machine"
        yield Finding(MODEL, Verdict.LOOK, what, "it must be there in the container")
        return
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError) as error:
        yield Finding(
            MODEL, Verdict.FAILS, f"{folder} has no readable config.json: {error}", "build an engine"
        )
        return
    if "build_config" not in config or not list(folder.glob("rank*.engine")):
        what = f"{folder} holds no engine" + (", but a checkpoint" if "architectures" in config else "")
        yield Finding(MODEL, Verdict.FAILS, what, "inflight trtllm build prints how to build one from it")
        return
    version = str(config.get("version", ""))
    if version != edition.tensorrt_llm:
        what = f"{folder} was built with TensorRT-LLM {version or '?'}"
        remedy = (
            f"build it again with {edition.tensorrt_llm}: an engine runs only in the version that built it"
        )
        yield Finding(MODEL, Verdict.FAILS, what, remedy)
    gpus = int(((config.get("pretrained_config") or {}).get("mapping") or {}).get("world_size", 1))
    if gpus > 1:
        what = f"{folder} was built for {gpus} GPUs"
        yield Finding(MODEL, Verdict.DIFFERS, what, f"start tritonserver with mpirun, {gpus} processes")
    plugins = config["build_config"].get("plugin_config") or {}
    if not plugins.get("use_paged_context_fmha", True):
        what = "the engine was built without use_paged_context_fmha: no prefix cache, no chunked prompts"
        yield Finding(MODEL, Verdict.DIFFERS, what, "build it again with --use_paged_context_fmha enable")
