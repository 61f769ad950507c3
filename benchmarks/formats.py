"""`python -m benchmarks.formats`: what each format of a checkpoint costs the default model in perplexity.

The model is rounded to the format, written, and read again as `inflight perplexity` reads any checkpoint:
once as exactly as the format allows (fp32), and in what this device would serve it with. Rounding is to the
nearest level: what AWQ and GPTQ find by looking at activations is not done, so theirs lose less than this.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType
from rich.console import Console

from benchmarks.default_model import default_model_path
from benchmarks.documented_tables import markdown, write_between_marks
from benchmarks.transformers_model import load_in_transformers
from tests.engine.gguf_files import write_gguf
from tests.engine.quantized_checkpoints import FORMATS, quantize

_AS_IT_IS = "unquantised"
_GGUF = (GGMLQuantizationType.Q8_0, GGMLQuantizationType.Q4_1, GGMLQuantizationType.Q4_0)
_SERVED = {"cpu": ("int8", "int4"), "cuda": ("bf16", "fp8")}
Write = Callable[[Any, Path], Path]


def _unquantised(model: Any, folder: Path) -> Path:
    model.save_pretrained(folder)
    return folder


def _in_one_file(kind: GGMLQuantizationType, model: Any, folder: Path) -> Path:
    return write_gguf(model, folder / "model.gguf", kind)


def writers() -> Iterator[tuple[str, Write]]:
    yield _AS_IT_IS, _unquantised
    for name in FORMATS:
        yield name, partial(quantize, name=name)
    for kind in _GGUF:
        yield f"GGUF, {kind.name}", partial(_in_one_file, kind)


def perplexities(model: Path, tokenizer: Path, folder: Path, device: str) -> dict[str, float]:
    told = {
        "inflight_device": device,
        "gpt_model_path": str(model),
        "tokenizer_dir": str(tokenizer),
        "inflight_packed_cache_dir": str(folder / "packed"),
        "precisions": _SERVED[device],
    }
    command = [sys.executable, "-m", "python_backend.engine.tasks.perplexity", json.dumps(told)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    rows = (json.loads(line) for line in done.stdout.splitlines())
    return {row["precision"]: row["perplexity"] for row in rows if "perplexity" in row}


def measured(
    model: Any, tokenizer: Path, device: str, writer: tuple[str, Write]
) -> tuple[str, dict[str, float]]:
    name, write = writer
    with tempfile.TemporaryDirectory(prefix="inflight-formats-") as folder:
        path = write(deepcopy(model), Path(folder))
        return name, perplexities(path, tokenizer, Path(folder), device)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.formats", description=__doc__)
    parser.add_argument("--device", choices=sorted(_SERVED), default="cpu")
    parser.add_argument("--only", nargs="+", default=[], help="only formats whose names contain one of these")
    parser.add_argument("--at-once", type=int, default=1, help="so many formats side by side (default: 1)")
    parser.add_argument("--docs", type=Path, help="a page with markers for the table")
    asked = parser.parse_args(arguments)
    console = Console()
    source = Path(default_model_path(console))
    chosen = [
        writer
        for writer in writers()
        if writer[0] == _AS_IT_IS or not asked.only or any(word in writer[0] for word in asked.only)
    ]
    model, tokenizer = load_in_transformers(source), source if source.is_dir() else source.parent
    columns = ("as stored", *_SERVED[asked.device])
    rows, exact = [], 0.0
    with ThreadPoolExecutor(asked.at_once) as pool:
        for name, found in pool.map(partial(measured, model, tokenizer, asked.device), chosen):
            exact = exact or found["fp32"]
            told = [f"{each:.2f} ({100 * (each / exact - 1):+.2f} %)" for each in found.values()]
            console.print(name, *told, sep="  ")
            rows.append((name, *told))
    if asked.docs:
        table = markdown(("format", *columns), rows)
        write_between_marks(asked.docs, f"formats-{asked.device}", table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
