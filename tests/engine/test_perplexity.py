"""Perplexity is what its definition says, and the precisions offered keep it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from python_backend.engine.perplexity import FIXED_TEXT, WINDOW_TOKENS, cut, surprise
from tests.engine.checkpoints import VOCABULARY, all_logits, random_model, save

WORDS = [f"w{number}" for number in range(VOCABULARY)]


def measured(
    model: Path, tokenizer_dir: Path, text: Path | None, packed: Path, *precisions: str
) -> list[dict[str, Any]]:
    told = {
        "gpt_model_path": str(model),
        "tokenizer_dir": str(tokenizer_dir),
        "inflight_packed_cache_dir": str(packed),
        "precisions": precisions,
        "text": text and str(text),
    }
    command = [sys.executable, "-m", "python_backend.engine.perplexity", json.dumps(told)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
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


@pytest.mark.parametrize("family", ["Llama", "Mixtral"])
def test_it_agrees_with_transformers(family: str, words: Path, tmp_path: Path) -> None:
    model = random_model(family)
    save(model, tmp_path / "model")
    (row,) = measured(tmp_path / "model", words, words / "text.txt", tmp_path / "packed", "fp32")
    ids = [WORDS.index(word) for word in (words / "text.txt").read_text().split()]
    total = 0.0
    windows = [ids[at : at + 256] for at in range(0, len(ids), 256)]  # the model has no more positions
    for window in windows:
        log_probs = all_logits(model, window).double().log_softmax(-1)
        total -= float(log_probs[torch.arange(len(window) - 1), window[1:]].sum())
    tokens = len(ids) - len(windows)
    assert row["tokens"] == tokens
    assert row["perplexity"] == pytest.approx(math.exp(total / tokens), rel=1e-3)
    assert row["change_percent"] == 0


def test_packed_weights_that_serving_does_not_use_are_not_kept(words: Path, tmp_path: Path) -> None:
    save(random_model("Llama"), tmp_path / "model")
    rows = measured(tmp_path / "model", words, words / "text.txt", tmp_path / "packed", "int8", "int4")
    assert [row["precision"] for row in rows] == ["fp32", "int8", "int4"]
    assert rows[0]["weights_bytes"] > rows[1]["weights_bytes"] > rows[2]["weights_bytes"]
    assert list((tmp_path / "packed").iterdir()) == []


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 1), st.integers(3, 20))
def test_windows_hold_every_token_once_and_always_something_to_foresee(
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
    default_checkpoint: Path, data_dir: Path, tmp_path: Path
) -> None:
    """On parts of the fixed text, to be quick: a story, an explanation, a dialogue, code."""
    text = FIXED_TEXT.read_text(encoding="utf-8")
    (tmp_path / "text.txt").write_text("\n".join(part[:500] for part in text.split("* * *\n")))
    model = default_checkpoint / "model.gguf"
    rows = measured(model, default_checkpoint, tmp_path / "text.txt", data_dir / "packed", "int8", "int4")
    assert [row["precision"] for row in rows] == ["fp32", "int8", "int4"]
    assert all(row["tokens"] > 500 for row in rows)
    assert all(abs(row["change_percent"]) < 3 for row in rows)
