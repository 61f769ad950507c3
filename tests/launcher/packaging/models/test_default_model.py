"""The default model, really downloaded; that it computes what transformers does is tested with a stack."""

from __future__ import annotations

from typing import TYPE_CHECKING

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


def test_the_default_models_tokenizer_round_trips(data_dir: Path) -> None:
    from tokenizers import Tokenizer

    default_model = resolve_checkpoint("smollm2-135m-instruct", data_dir, RecordedProgress()).directory
    tokenizer = Tokenizer.from_file(str(default_model / "tokenizer.json"))
    for text in TEXTS:
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>").ids[0] == 1
