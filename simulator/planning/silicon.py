"""Step costs of GPUs that are not here, from the measured tables of NVIDIA's aiconfigurator 0.4 (Apache-2.0).

Its wheel is read as it is (`pip download --no-deps aiconfigurator==0.4.0`): to install it would bring some
twenty packages, and its later releases need another numpy. A step is the sum of its layers' matrix products,
attention and all-reduces, each interpolated between the measured sizes; what lies beyond them is counted.
"""

from __future__ import annotations

import csv
import io
import re
import zipfile
from bisect import bisect_left
from collections import defaultdict
from dataclasses import dataclass
from math import exp, log
from pathlib import Path

from python_backend.costs.step_cost import StepCost
from simulator.planning.fitting import fitted_cost

_SYSTEMS = "aiconfigurator/systems"
_DTYPES = {"bf16": "float16", "fp8": "fp8"}
_GRID_BATCHES, _GRID_CONTEXTS, _GRID_PROMPTS = (1, 8, 32, 64, 128, 256), (256, 1024, 4096), (1024, 2048, 4032)


class TablesError(ValueError):
    """What was given has no such tables; the message says what is there."""


@dataclass(frozen=True)
class ModelShape:
    """A dense decoder."""

    layers: int
    hidden: int
    ffn: int
    heads: int
    kv_heads: int
    vocabulary: int
    head_dim: int = 128

    @property
    def weights(self) -> int:
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        layer = attention + 3 * self.hidden * self.ffn
        return self.layers * layer + 2 * self.vocabulary * self.hidden

    @property
    def kv_bytes(self) -> int:
        """Of one token, in 16 bits."""
        return self.layers * 2 * self.kv_heads * self.head_dim * 2


class Table:
    """Times by sizes, interpolated between neighbours on logarithmic axes; beyond the ends they go on."""

    def __init__(self, rows: dict[tuple[int, ...], float]) -> None:
        self._tree: dict[int, Table | float] = {}
        parts: dict[int, dict[tuple[int, ...], float]] = defaultdict(dict)
        for (first, *rest), value in rows.items():
            parts[first][tuple(rest)] = value
        for first, found in parts.items():
            self._tree[first] = found[()] if () in found else Table(found)
        self._keys = sorted(self._tree)

    def at(self, *sizes: float) -> tuple[float, bool]:
        """Milliseconds, and whether that lies beyond what was measured."""
        first, *rest = sizes
        keys = self._keys
        high = min(max(bisect_left(keys, first), 1), len(keys) - 1)
        near = [keys[high - 1], keys[high]] if len(keys) > 1 else [keys[0], keys[0]]
        values = []
        is_beyond = first < keys[0] or first > keys[-1]
        for key in near:
            below = self._tree[key]
            if isinstance(below, Table):
                value, beyond = below.at(*rest)
                is_beyond |= beyond
            else:
                value = below
            values.append(log(max(value, 1e-7)))
        if near[0] == near[1] or first == near[0]:
            return exp(values[0]), is_beyond
        part = (log(first) - log(near[0])) / (log(near[1]) - log(near[0]))
        return exp(values[0] + min(max(part, 0.0), 6.0) * (values[1] - values[0])), is_beyond


@dataclass(frozen=True)
class Derived:
    """`error` is how far the four coefficients are from the sums of the tables at worst."""

    cost: StepCost
    error: float
    is_extrapolated: bool
    memory_bytes: float
    origin: str


class SiliconTables:
    """`source` is the wheel, or a directory in which it was unpacked or installed."""

    def __init__(self, source: Path) -> None:
        self._source = source
        self._zip = zipfile.ZipFile(source) if source.is_file() else None
        names = (
            self._zip.namelist()
            if self._zip
            else [
                path.relative_to(source).as_posix()
                for path in source.glob(f"{_SYSTEMS}/**/*")
                if path.is_file()
            ]
        )
        self._names = [name for name in names if name.startswith(_SYSTEMS)]
        if not self.gpus:
            raise TablesError(f"{source}: no tables of aiconfigurator 0.4 in it")

    @property
    def gpus(self) -> dict[str, str]:
        """By how we call them: `h200` -> `h200_sxm`."""
        found = {}
        for name in self._names:
            matched = re.fullmatch(rf"{_SYSTEMS}/data/(\w+)/trtllm/[^/]+/gemm_perf\.txt", name)
            if matched and not matched[1].startswith("gb"):
                found[matched[1].partition("_")[0]] = matched[1]
        return found

    def _read(self, name: str) -> str:
        if self._zip is not None:
            return self._zip.read(name).decode()
        return (self._source / name).read_text()

    def derive(self, gpu: str, model: ModelShape, precision: str, parallel: int) -> Derived:
        if gpu not in self.gpus:
            raise TablesError(f"{gpu}: no tables; there are {', '.join(sorted(self.gpus))}")
        system = self.gpus[gpu]
        releases = {
            name.split("/")[5] for name in self._names if name.startswith(f"{_SYSTEMS}/data/{system}/trtllm/")
        }
        release = max(releases)
        step = _Step(self, f"{_SYSTEMS}/data/{system}/trtllm/{release}", model, precision, parallel)
        features, times = [], []
        for batch in _GRID_BATCHES:
            for context in _GRID_CONTEXTS:
                features.append((1.0, 0.0, batch, batch * context / 1000))
                times.append(step.decode_ms(batch, context))
        for prompt in _GRID_PROMPTS:
            for batch in (0, 64):
                features.append((1.0, prompt, batch, batch * 1024 / 1000))
                times.append(step.mixed_ms(prompt, batch, 1024))
        cost, error = fitted_cost(features, times)
        text = self._read(f"{_SYSTEMS}/{system}.yaml")
        memory = re.search(r"mem_capacity: (\d+)", text)
        origin = f"tables of aiconfigurator 0.4.0 ({system}, TensorRT-LLM {release})"
        return Derived(cost, error, step.is_beyond, float(memory[1]) if memory else 0.0, origin)

    def rows(self, name: str, keys: tuple[str, ...], **only: str) -> Table:
        found: dict[tuple[int, ...], float] = {}
        for row in csv.DictReader(io.StringIO(self._read(name))):
            if all(row[column] == value for column, value in only.items()):
                found[tuple(int(row[key]) for key in keys)] = float(row["latency"])
        if not found:
            raise TablesError(f"{name}: no measurements with {only}")
        return Table(found)


class _Step:
    def __init__(
        self, tables: SiliconTables, folder: str, model: ModelShape, precision: str, parallel: int
    ) -> None:
        self._model, self._parallel = model, parallel
        self.is_beyond = False
        heads, kv = model.heads // parallel, max(model.kv_heads // parallel, 1)
        only = {"num_heads": str(heads), "num_key_value_heads": str(kv), "kv_cache_dtype": "float16"}
        self._gemm = tables.rows(f"{folder}/gemm_perf.txt", ("n", "k", "m"), gemm_dtype=_DTYPES[precision])
        self._head = tables.rows(f"{folder}/gemm_perf.txt", ("n", "k", "m"), gemm_dtype="float16")
        self._prompts = tables.rows(
            f"{folder}/context_attention_perf.txt", ("batch_size", "isl"), attn_dtype="float16", **only
        )
        self._decoding = tables.rows(
            f"{folder}/generation_attention_perf.txt", ("batch_size", "step"), **only
        )
        self._reduce = None
        if parallel > 1:
            name = f"{folder}/custom_allreduce_perf.txt"
            self._reduce = tables.rows(name, ("message_size",), num_gpus=str(parallel))

    def _take(self, table: Table, *sizes: float) -> float:
        value, is_beyond = table.at(*sizes)
        self.is_beyond |= is_beyond
        return value

    def _products_ms(self, tokens: int) -> float:
        model, parallel = self._model, self._parallel
        joint = (model.heads + 2 * model.kv_heads) * model.head_dim / parallel
        layer = self._take(self._gemm, joint, model.hidden, tokens)
        layer += self._take(self._gemm, model.hidden, model.heads * model.head_dim / parallel, tokens)
        layer += self._take(self._gemm, 2 * model.ffn / parallel, model.hidden, tokens)
        layer += self._take(self._gemm, model.hidden, model.ffn / parallel, tokens)
        if self._reduce is not None:
            layer += 2 * self._take(self._reduce, 2 * tokens * model.hidden)
        return model.layers * layer

    def _head_ms(self, rows: int) -> float:
        model, widest = self._model, 65536
        wide = model.vocabulary / self._parallel
        return self._take(self._head, min(wide, widest), model.hidden, rows) * max(wide / widest, 1.0)

    def decode_ms(self, batch: int, context: int) -> float:
        attention = self._model.layers * self._take(self._decoding, batch, context)
        return self._products_ms(batch) + attention + self._head_ms(batch)

    def mixed_ms(self, prompt: int, batch: int, context: int) -> float:
        """A step with a prompt beside so many that decode."""
        attention = self._take(self._prompts, 1, prompt)
        attention += self._take(self._decoding, batch, context) if batch else 0.0
        return self._products_ms(prompt + batch) + self._model.layers * attention + self._head_ms(batch + 1)
