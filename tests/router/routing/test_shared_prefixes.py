"""Which prompts begin with what the operator has named."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers

from python_backend.wire.shared_prefix import shared_tokens
from router.routing.chat_template import ChatTemplate, load_template
from router.routing.shared_prefixes import SharedPrefixes

SYSTEM = "You are the assistant of a bank. " * 10 + "Be brief."


@pytest.fixture(scope="module")
def tokenizer(default_checkpoint: Path) -> Path:
    return default_checkpoint / "tokenizer.json"


@pytest.fixture(scope="module")
def template(default_checkpoint: Path) -> ChatTemplate:
    loaded = load_template(default_checkpoint)
    assert loaded is not None
    return loaded


@pytest.fixture(scope="module")
def shared(tokenizer: Path, template: ChatTemplate) -> SharedPrefixes:
    return SharedPrefixes([SYSTEM], template, tokenizer)


def chat(template: ChatTemplate, system: str, question: str = "Hello") -> str:
    return template.render([{"role": "system", "content": system}, {"role": "user", "content": question}])


def ids(tokenizer: Path, text: str) -> list[int]:
    encoding = tokenizers.Tokenizer.from_file(str(tokenizer))
    found: list[int] = encoding.encode(text, add_special_tokens=False).ids
    return found


@pytest.mark.parametrize("more", ["", " You serve Ada Lovelace.", "\n\nToday is Friday."])
def test_a_named_system_prompt_is_shared_and_the_engine_finds_it(
    shared: SharedPrefixes, template: ChatTemplate, tokenizer: Path, more: str
) -> None:
    prompt = chat(template, SYSTEM + more)
    description = shared.of(prompt, False)
    assert description is not None
    found = shared_tokens(description, ids(tokenizer, prompt))
    assert 70 < found < len(ids(tokenizer, prompt[: prompt.index(SYSTEM) + len(SYSTEM)]))


def test_a_plain_prompt_that_begins_with_it_is_shared(shared: SharedPrefixes, tokenizer: Path) -> None:
    prompt = f"{SYSTEM} Now list the branches."
    for adds_special_tokens in (True, False):
        description = shared.of(prompt, adds_special_tokens)
        assert description is not None
        assert shared_tokens(description, ids(tokenizer, prompt)) > 70


def test_nothing_else_is_shared(shared: SharedPrefixes, template: ChatTemplate) -> None:
    assert shared.of(chat(template, "You serve Ada. " + SYSTEM), False) is None
    assert shared.of(chat(template, "Be brief.", SYSTEM), False) is None
    assert shared.of("Hello", True) is None
    assert shared.of("", False) is None


def test_the_longest_of_several_is_taken(tokenizer: Path, template: ChatTemplate) -> None:
    both = SharedPrefixes([SYSTEM[:100], SYSTEM], template, tokenizer)
    alone = SharedPrefixes([SYSTEM], template, tokenizer)
    assert both.of(chat(template, SYSTEM), False) == alone.of(chat(template, SYSTEM), False)


def test_without_names_or_a_tokenizer_nothing_is_shared(tmp_path: Path, template: ChatTemplate) -> None:
    assert not SharedPrefixes()
    assert not SharedPrefixes([SYSTEM], template, tmp_path / "tokenizer.json")


def test_a_template_without_system_messages_leaves_plain_prompts(tokenizer: Path) -> None:
    refusing = ChatTemplate("{{ raise_exception('System role not supported') }}")
    only_plain = SharedPrefixes([SYSTEM], refusing, tokenizer)
    assert only_plain.of(SYSTEM + " and more", True) is not None
