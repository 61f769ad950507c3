"""Perplexity is what its definition says, and the precisions offered keep it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from python_backend.engine.checkpoint import Checkpoint
from python_backend.engine.config import EngineConfig
from python_backend.engine.cuda.build import assemble
from python_backend.engine.cuda.decoder import CudaDecoder
from python_backend.engine.cuda.executor import CudaExecutor
from python_backend.engine.cuda.fp8 import make_fp8
from python_backend.engine.cuda.head import ByteHead, Head
from python_backend.engine.cuda.linear import Linear
from python_backend.engine.cuda.weights import place_weights
from python_backend.engine.host.device import Device, Gpu
from python_backend.engine.kv.blocks import BlockPool
from python_backend.engine.models import load_weights
from python_backend.engine.models.decoder import DecoderWeights, Weights
from python_backend.engine.report import LoadingProgress
from python_backend.engine.tasks import perplexity
from python_backend.engine.tasks.perplexity import FIXED_TEXT, WINDOW_TOKENS, cut, measure, score, surprise
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import PRECISIONS
from tests.engine.checkpoints import VOCABULARY, all_logits, random_model, save

H200 = Gpu("NVIDIA H200", (9, 0))
WORDS = [f"w{number}" for number in range(VOCABULARY)]


def measured(
    model: Path, tokenizer_dir: Path, text: Path | None, packed: Path, device: str, *precisions: str
) -> list[dict[str, Any]]:
    told = {
        "inflight_device": device,
        "gpt_model_path": str(model),
        "tokenizer_dir": str(tokenizer_dir),
        "inflight_packed_cache_dir": str(packed),
        "precisions": precisions or None,
        "text": text and str(text),
    }
    said = StringIO()
    with redirect_stdout(said):
        measure(told)
    events = [json.loads(line) for line in said.getvalue().splitlines()]
    return [event for event in events if "stage" not in event]


@pytest.fixture
def words(tmp_path: Path) -> Path:
    """A text of 700 words, and beside it a tokenizer to which each word is a token."""
    vocabulary = {word: number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    chosen = np.random.default_rng(3).choice(WORDS, 700)
    (tmp_path / "text.txt").write_text(" ".join(chosen))
    return tmp_path


def surprise_of_transformers(model: Any, window: list[int]) -> float:
    log_probs = all_logits(model, window).double().log_softmax(-1)
    return -float(log_probs[torch.arange(len(window) - 1), window[1:]].sum())


@pytest.mark.parametrize("family", ["Llama", "Mixtral"])
def test_perplexity_agrees_with_transformers(family: str, device: str, words: Path, tmp_path: Path) -> None:
    model = random_model(family)
    save(model, tmp_path / "model")
    (row,) = measured(tmp_path / "model", words, words / "text.txt", tmp_path / "packed", device, "fp32")
    ids = [WORDS.index(word) for word in (words / "text.txt").read_text().split()]
    windows = [ids[at : at + 256] for at in range(0, len(ids), 256)]  # the model has no more positions
    total = sum(surprise_of_transformers(model, window) for window in windows)
    tokens = len(ids) - len(windows)
    assert row["tokens"] == tokens
    assert row["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-3)
    assert row["change_percent"] == 0


def place_anywhere(
    config: EngineConfig, weights: DecoderWeights, device: str
) -> tuple[BlockPool, CudaExecutor]:
    """What a GPU computes with, wherever the test runs, in fp32 or in fp8 weights beside it."""

    def place(array: Weights) -> torch.Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    make, make_head = (make_fp8, ByteHead) if config.precision == "fp8" else (Linear, Head)
    placed = place_weights(weights, place, make, lambda done, total: None, make_head=make_head)
    assert config.max_tokens_in_kv_cache is not None
    pool = BlockPool(config.max_tokens_in_kv_cache // config.tokens_per_block, config.tokens_per_block)
    longest = pool.capacity_tokens
    decoder = CudaDecoder(weights.shape, placed, longest)
    return pool, assemble(config, pool, longest, decoder)[0]


def test_the_gpus_executor_agrees_with_transformers(device: str, tmp_path: Path) -> None:
    model = random_model("Llama", num_hidden_layers=1)
    weights = load_weights(Checkpoint(save(model, tmp_path)))
    config = EngineConfig(str(tmp_path), 16, 4, max_batch_size=1, precision="fp32", cuda_graphs=False)
    pool, executor = place_anywhere(config, weights, device)
    windows = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 35], [197, 93], [2, 38, 46, 26, 43]]
    done: list[int] = []
    found = score(executor, pool, windows, done.append)
    assert done == [9, 10, 14]
    assert found.tokens == 14
    assert found.surprise == pytest.approx(
        sum(surprise_of_transformers(model, window) for window in windows), rel=1e-4
    )
    pool.check()
    assert pool.used_blocks == 0


class FakeGpu:
    """Memory that only weights take, 1000 bytes for each byte of a number; computes where the test runs."""

    def __init__(self, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self._device = device
        self._allocated_bytes = 77
        monkeypatch.setattr(perplexity, "choose_device", lambda asked, gpu: Device(H200, gpu))
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda gpu: self._allocated_bytes)
        monkeypatch.setattr(torch.cuda, "empty_cache", self._free)
        monkeypatch.setattr("python_backend.engine.cuda.build.build_on_gpu", self._build)

    def _free(self) -> None:
        self._allocated_bytes = 77

    def _build(
        self, config: EngineConfig, weights: DecoderWeights, longest: int, progress: LoadingProgress
    ) -> tuple[BlockPool, CudaExecutor]:
        if self._allocated_bytes > 77:
            raise InflightError(ErrorKind.ENGINE_FAILED, "the model does not fit on this GPU")
        assert (config.device, config.gpu, config.cuda_graphs) == ("cuda", 3, False)
        progress("loading weights", 0, 1)
        self._allocated_bytes += {"fp32": 4000, "bf16": 2000, "fp8": 1000}[config.precision]
        progress("loading weights", 1, 1)
        pool, executor = place_anywhere(config, weights, self._device)
        self._allocated_bytes += 500
        progress("capturing graphs", 0, 1)
        return pool, executor


@pytest.fixture
def short_text(words: Path) -> Path:
    (words / "text.txt").write_text(" ".join(WORDS[7:16]))
    return words


def told_of(words: Path, **changes: Any) -> dict[str, Any]:
    save(random_model("Llama", num_hidden_layers=1), words / "model")
    return {
        "gpt_model_path": str(words / "model"),
        "tokenizer_dir": str(words),
        "text": str(words / "text.txt"),
        "gpu_device_ids": 3,
        **changes,
    }


def test_each_precision_has_the_gpu_to_itself(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], short_text: Path
) -> None:
    FakeGpu(device, monkeypatch)
    measure(told_of(short_text))
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    stages = [(event["stage"], event["precision"]) for event in events if "stage" in event]
    assert list(dict.fromkeys(stages)) == [
        (stage, precision) for precision in ("fp32", "bf16", "fp8") for stage in ("loading", "measuring")
    ]
    rows = [event for event in events if "stage" not in event]
    assert [row["precision"] for row in rows] == ["fp32", "bf16", "fp8"]
    assert [row["weights_bytes"] for row in rows] == [4000, 2000, 1000]
    assert [row["tokens"] for row in rows] == [8, 8, 8]
    assert rows[0]["change_percent"] == 0
    assert rows[1]["change_percent"] == pytest.approx(0, abs=1e-3), "the fake computes it in fp32"
    assert 0 < abs(rows[2]["change_percent"]) < 10


def test_fp8_keys_and_values_are_measured_beside_those_of_the_same_precision(
    device: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], short_text: Path
) -> None:
    FakeGpu(device, monkeypatch)
    measure(told_of(short_text, precisions=["bf16"], inflight_kv_precision="fp8"))
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = {event["precision"]: event for event in events if "stage" not in event}
    assert list(rows) == ["fp32", "bf16", "bf16 with fp8 keys and values"]
    exact, rounded = rows["bf16"]["change_percent"], rows["bf16 with fp8 keys and values"]["change_percent"]
    assert exact == pytest.approx(0, abs=1e-3), "the fake computes it in fp32"
    assert 0 < abs(rounded) < 10


def test_fp8_keys_and_values_are_not_measured_where_they_cannot_be(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for device, why in (
        (Device(), r"this machine computes on the CPU"),
        (Device(Gpu("NVIDIA A100", (8, 0))), r".* fp8 needs 8.9"),
    ):
        monkeypatch.setattr(perplexity, "choose_device", lambda asked, gpu, found=device: found)
        with pytest.raises(InflightError, match=rf"inflight_kv_precision is 'fp8'; allowed: auto \({why}\)"):
            measure({"gpt_model_path": str(tmp_path), "inflight_kv_precision": "fp8"})


def test_a_precision_that_does_not_fit_is_named(
    device: str, monkeypatch: pytest.MonkeyPatch, short_text: Path
) -> None:
    FakeGpu(device, monkeypatch)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    with pytest.raises(InflightError, match="in fp8, the model does not fit on this GPU"):
        measure(told_of(short_text, precisions=["fp8"]))


@pytest.mark.gpu
def test_a_gpu_is_measured_in_its_own_precisions(device: str, words: Path, tmp_path: Path) -> None:
    save(random_model("Llama"), tmp_path / "model")
    rows = measured(tmp_path / "model", words, words / "text.txt", tmp_path / "packed", device)
    assert [row["precision"] for row in rows] == ["fp32", "bf16", "fp8"]
    assert rows[0]["weights_bytes"] > rows[1]["weights_bytes"] > rows[2]["weights_bytes"]
    assert rows[0]["weights_bytes"] == pytest.approx(2 * rows[1]["weights_bytes"], rel=0.1)
    assert rows[1]["perplexity"] != rows[0]["perplexity"] != rows[2]["perplexity"]
    assert all(abs(row["change_percent"]) < 10 for row in rows)
    assert not (tmp_path / "packed").exists(), "nothing is packed for a GPU"


def test_a_precision_of_another_device_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(perplexity, "choose_device", lambda asked, gpu: Device(H200, gpu))
    with pytest.raises(InflightError, match=r"--precision is 'int8'; allowed: fp32, bf16, fp8 \(this m"):
        measure({"gpt_model_path": str(tmp_path), "precisions": ["fp8", "int8"]})


def test_an_older_gpu_is_measured_in_its_supported_precisions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    a100 = Device(Gpu("NVIDIA A100", (8, 0)))
    monkeypatch.setattr(perplexity, "choose_device", lambda asked, gpu: a100)
    with pytest.raises(InflightError, match=r"'fp8'; allowed: fp32, bf16 \(.* fp8 needs 8.9\)"):
        measure({"gpt_model_path": str(tmp_path), "precisions": ["fp8"]})
    assert perplexity._precisions(None, a100, "auto") == ["fp32", "bf16"]


def test_measuring_on_a_gpu_needs_none_of_the_cpus_packages() -> None:
    program = """import sys
sys.modules["numba"] = None
import python_backend.engine.tasks.perplexity
import python_backend.engine.cuda.build
assert not any(name.startswith("python_backend.engine.native") for name in sys.modules)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_packed_weights_that_serving_does_not_use_are_not_kept(
    device: str, words: Path, tmp_path: Path
) -> None:
    require_cpu(device)
    save(random_model("Llama"), tmp_path / "model")
    rows = measured(tmp_path / "model", words, words / "text.txt", tmp_path / "packed", "cpu")
    assert [row["precision"] for row in rows] == ["fp32", "int8", "int4"]
    assert rows[0]["weights_bytes"] > rows[1]["weights_bytes"] > rows[2]["weights_bytes"]
    assert list((tmp_path / "packed").iterdir()) == []


def require_cpu(device: str) -> None:
    if device != "cpu":
        pytest.skip("int8 and int4 are precisions of the CPU: --device cpu")


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 1), st.integers(3, 20))
def test_windows_hold_every_token_once_and_always_something_to_predict(
    tokens: int, begin_tokens: int, window_tokens: int
) -> None:
    ids, begin = list(range(tokens)), [99] * begin_tokens
    windows = cut(ids, begin, window_tokens)
    assert all(2 <= len(window) <= window_tokens for window in windows)
    assert all(window[:begin_tokens] == begin for window in windows)
    held = [token for window in windows for token in window[begin_tokens:]]
    assert held == ids[: len(held)]
    assert len(ids) - len(held) <= 1 - begin_tokens


def test_surprise_is_the_logarithm_of_the_number_of_equal_choices() -> None:
    logits = np.full((3, 50), 1e4, np.float32)
    assert surprise(logits, [0, 7, 49]) == pytest.approx(3 * math.log(50))


def test_the_fixed_text_fills_several_windows() -> None:
    text = FIXED_TEXT.read_text(encoding="utf-8")
    assert 10_000 < len(text) < 12_000
    assert len(text) / 5 > 3 * WINDOW_TOKENS
    assert "    return {hour" in text, "some of it is a program"


def test_every_precision_keeps_the_default_models_answers(
    device: str, default_checkpoint: Path, data_dir: Path, tmp_path: Path
) -> None:
    """On parts of the fixed text, to be quick: a story, an explanation, a dialogue, code."""
    text = FIXED_TEXT.read_text(encoding="utf-8")
    (tmp_path / "text.txt").write_text("\n".join(part[:250] for part in text.split("* * *\n")))
    model = default_checkpoint / "model.gguf"
    rows = measured(model, default_checkpoint, tmp_path / "text.txt", data_dir / "packed", device)
    assert [row["precision"] for row in rows] == list(PRECISIONS[device])
    assert all(row["tokens"] > 300 for row in rows)
    assert all(abs(row["change_percent"]) < 3 for row in rows)
