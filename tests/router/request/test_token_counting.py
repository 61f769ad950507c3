from __future__ import annotations

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from router.request import token_counting
from router.request.token_counting import Tokenizers


async def test_tokenizers_that_were_loaded_are_not_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large one takes seconds, in which nobody is served."""
    tokenizer = Tokenizer(WordLevel({"word": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    tokenizers = Tokenizers({"one": tmp_path, "two": tmp_path, "none": tmp_path / "elsewhere"})
    await tokenizers.load()
    monkeypatch.setattr(token_counting, "_load", None)
    assert await tokenizers.count("acme", "one", "word word") == 2
    assert await tokenizers.count("acme", "two", "word") == 1
    assert await tokenizers.count("acme", "none", "word") > 0  # estimated
