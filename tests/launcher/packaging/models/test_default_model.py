"""The default model, really downloaded, is the model it claims to be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.transformers_model import load_in_transformers
from launcher.packaging.models.checkpoint import resolve_checkpoint
from tests.launcher.conftest import RecordedProgress

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = (
    "  lead and  double   spaces\n\n\ttabs",
    "12345 67,890.12 3rd",
    "Größe naïve café",
    "日本語のテキスト 中文 한국어",
    "👩‍👩‍👧‍👦 🇫🇷 😀😀",
    "def f(x):\n    return x**2  # don't\n",
    "العربية हिन्दी ไทย",
)


@pytest.fixture(scope="module")
def default_model(data_dir: Path) -> Path:
    return resolve_checkpoint("smollm2-135m-instruct", data_dir, RecordedProgress()).directory


def test_the_default_model_knows_the_capital_of_france(default_model: Path) -> None:
    from transformers import AutoTokenizer

    model = load_in_transformers(default_model / "model.gguf")
    tokenizer: Any = AutoTokenizer.from_pretrained(default_model)
    question = [{"role": "user", "content": "Name the capital of France."}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    output = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    assert (
        tokenizer.decode(output[0, prompt["input_ids"].shape[1] :])
        == "The capital of France is Paris.<|im_end|>"
    )


def test_the_default_models_tokenizer_round_trips(default_model: Path) -> None:
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>").ids[0] == 1
