from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from python_backend.wire.errors import ErrorKind, InflightError
from router.request.token_counting import Tokenizers
from router.request.tokenizer_program import COUNT
from router.routing.models import ServedModel
from tests.fakes.pipeline import FakePipeline


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tokenizer = Tokenizer(WordLevel({"word": 0, "?": 1}, unk_token="?"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


@pytest.fixture
async def tokenizers(checkpoint: Path) -> AsyncIterator[Tokenizers]:
    opened = Tokenizers({"one": checkpoint, "two": checkpoint, "none": checkpoint / "elsewhere"})
    yield opened
    await opened.close()


async def test_tokenizers_that_were_loaded_are_not_read_again(
    tokenizers: Tokenizers, checkpoint: Path
) -> None:
    """A large one takes seconds."""
    await tokenizers.load()
    (checkpoint / "tokenizer.json").unlink()
    assert await tokenizers.count("acme", "one", "word word") == 2
    assert await tokenizers.count("acme", "two", "word") == 1
    assert await tokenizers.count("acme", "none", "word") > 0  # estimated


async def test_the_router_itself_never_reads_a_tokenizer(
    tokenizers: Tokenizers, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor that of a release which came later: nothing else of a process runs while the library reads one."""
    monkeypatch.setattr(Tokenizer, "from_file", None)
    release = ServedModel("late", FakePipeline(), checkpoint_dir=checkpoint)
    assert await tokenizers.encode("acme", release, "word word", True) == [0, 0]
    assert await tokenizers.names("acme", release, [0, 1]) == ["word", "?"]
    assert await tokenizers.decode("acme", release, [0, 0]) == "word word"
    with pytest.raises(InflightError, match=r"tokens\[1\]: there is no token 7") as refused:
        await tokenizers.decode("acme", release, [0, 7])
    assert (refused.value.kind, refused.value.param) == (ErrorKind.INVALID_REQUEST, "tokens[1]")


async def test_whoever_leaves_does_not_cost_the_others_what_was_read(
    tokenizers: Tokenizers, checkpoint: Path
) -> None:
    await tokenizers.load()
    [program] = tokenizers._programs.idle
    known = await tokenizers._known(checkpoint)
    assert known is not None
    leaving = asyncio.create_task(tokenizers._ask("acme", COUNT, known, "word " * 6_000))
    for _ in range(3):
        await asyncio.sleep(0)
    assert not tokenizers._programs.idle  # it has its turn
    leaving.cancel()
    await asyncio.wait([leaving])
    assert await tokenizers.count("acme", "one", "word") == 1  # behind the one that nobody waits for
    assert tokenizers._programs.idle == [program]


async def test_a_program_that_broke_is_replaced_and_its_question_is_to_be_asked_again(
    tokenizers: Tokenizers,
) -> None:
    assert await tokenizers.count("acme", "one", "word") == 1
    [program] = tokenizers._programs.idle
    program.kill()
    await program.wait()
    assert await tokenizers.count("acme", "one", "word") == 1
