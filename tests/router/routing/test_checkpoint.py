from __future__ import annotations

from pathlib import Path

import pytest

from router.openai.bodies import decode_chat
from router.openai.chat import chat_calls
from router.routing.checkpoint import (
    CONTEXT_TOKENS,
    SamplingDefaults,
    load_context_tokens,
    load_sampling_defaults,
)

ADVICE = SamplingDefaults(temperature=0.2, top_p=0.9)
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "x"}]'


def test_a_checkpoint_without_sampling_defaults_gets_openais(tmp_path: Path) -> None:
    assert load_sampling_defaults(tmp_path) == SamplingDefaults(1.0, 1.0, 0, 1.0)


def test_the_checkpoints_sampling_defaults_are_used(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.2, "top_p": 0.9, "eos_token_id": 2}')
    assert load_sampling_defaults(tmp_path) == ADVICE


@pytest.mark.parametrize("text", ["{", "[]", '{"temperature": 9, "top_p": "much", "top_k": true}'])
def test_invalid_sampling_defaults_are_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    assert load_sampling_defaults(tmp_path) == SamplingDefaults()


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ('{"max_position_embeddings": 2048}', 2048),
        ('{"max_position_embeddings": "many"}', CONTEXT_TOKENS),
        ('{"max_position_embeddings": 0}', CONTEXT_TOKENS),
        ("[]", CONTEXT_TOKENS),
        ("{", CONTEXT_TOKENS),
        (None, CONTEXT_TOKENS),
    ],
)
def test_the_context_length_is_the_checkpoints(tmp_path: Path, text: str | None, tokens: int) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    assert load_context_tokens(tmp_path) == tokens


def test_a_clients_parameters_override_the_checkpoints_defaults() -> None:
    (silent,) = chat_calls(decode_chat(BODY + b"}"), "x", "id", "local", ADVICE)
    assert (silent.temperature, silent.top_p) == (0.2, 0.9)
    body = decode_chat(BODY + b', "temperature": 1.5, "top_p": 1}')
    (spoken,) = chat_calls(body, "x", "id", "local", ADVICE)
    assert (spoken.temperature, spoken.top_p) == (1.5, 1.0)
