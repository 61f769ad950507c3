from __future__ import annotations

import json
from pathlib import Path

import pytest
import transformers

from python_backend.embeddings.description import read_description
from router.chat.calls import chat_calls
from router.openai.chat import decode_chat
from router.routing.checkpoint import (
    CONTEXT_TOKENS,
    SamplingDefaults,
    load_context_tokens,
    load_limits,
    load_sampling_defaults,
)
from tests.embeddings.test_families import FAMILIES

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
        ('{"text_config": {"max_position_embeddings": 4096}, "vision_config": {}}', 4096),
        ('{"text_config": []}', CONTEXT_TOKENS),
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


@pytest.mark.parametrize("kind", ["Model", "ForSequenceClassification"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_router_reads_of_an_encoder_what_the_model_itself_reads(
    tmp_path: Path, family: str, kind: str
) -> None:
    name, values = FAMILIES[family]
    config = getattr(transformers, f"{name}Config")(**values, num_labels=1).to_dict()
    config["architectures"] = [f"{name}{kind}"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    for chosen in ({}, {"max_seq_length": 20, "model_max_length": 20}):
        for file in ("sentence_bert_config.json", "tokenizer_config.json"):
            (tmp_path / file).write_text(json.dumps(chosen))
        limits, description = load_limits(tmp_path), read_description(tmp_path)
        assert limits.max_tokens == description.max_tokens
        assert limits.is_reranker == description.is_reranker
        assert limits.vocabulary == description.shape.vocabulary
        assert limits.dimensions == (1 if description.is_reranker else description.shape.hidden)


def test_the_prompts_of_an_encoder_are_those_of_its_authors(tmp_path: Path) -> None:
    config = {"hidden_size": 8, "vocab_size": 9, "max_position_embeddings": 16}
    (tmp_path / "config.json").write_text(json.dumps(config))
    told = {"prompts": {"query": "search_query: ", "document": ""}, "default_prompt_name": "document"}
    (tmp_path / "config_sentence_transformers.json").write_text(json.dumps(told))
    limits = load_limits(tmp_path)
    assert limits.prompts == told["prompts"]
    assert limits.prompted("a", "query") == "search_query: a"
    assert limits.prompted("a", limits.default_prompt) == "a"
