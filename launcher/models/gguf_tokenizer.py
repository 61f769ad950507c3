"""Rebuilds a byte-level BPE tokenizer, in Hugging Face's files, from the vocabulary a GGUF file carries."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

if TYPE_CHECKING:
    from pathlib import Path

    from gguf import GGUFReader

CONTROL_TOKEN = 3
USER_DEFINED_TOKEN = 4


class TokenizerError(Exception):
    """The GGUF file's tokenizer is not one this conversion understands."""


def write_tokenizer(reader: GGUFReader, into: Path) -> None:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja."""
    tokens: list[str] = contents(reader, "tokens")
    build_tokenizer(reader, tokens).save(str(into / "tokenizer.json"))
    settings = tokenizer_settings(reader, tokens)
    text = json.dumps(settings, indent=2, ensure_ascii=False) + "\n"
    (into / "tokenizer_config.json").write_text(text, encoding="utf-8")
    template = reader.get_field("tokenizer.chat_template")
    if template is not None:
        (into / "chat_template.jinja").write_text(template.contents(), encoding="utf-8")


def build_tokenizer(reader: GGUFReader, tokens: list[str]) -> Tokenizer:
    family, splitting = contents(reader, "model"), contents(reader, "pre")
    if family != "gpt2" or splitting != "smollm":
        raise TokenizerError(
            f"the GGUF file's tokenizer is {family!r} with pre-tokenizer {splitting!r}; "
            "only 'gpt2' with 'smollm' can be converted"
        )
    merges = [tuple(merge.split(" ")) for merge in contents(reader, "merges")]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds: list[int] = contents(reader, "token_type")
    added = [
        AddedToken(token, special=kind == CONTROL_TOKEN, normalized=False)
        for token, kind in zip(tokens, kinds, strict=True)
        if kind in (CONTROL_TOKEN, USER_DEFINED_TOKEN)
    ]
    tokenizer.add_special_tokens(added)
    return tokenizer


def tokenizer_settings(reader: GGUFReader, tokens: list[str]) -> dict[str, Any]:
    specials = {
        f"{role}_token": tokens[contents(reader, f"{key}_token_id")]
        for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding"))
        if reader.get_field(f"tokenizer.ggml.{key}_token_id") is not None
    }
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **specials,
        "add_prefix_space": bool(contents(reader, "add_space_prefix")),
        "clean_up_tokenization_spaces": False,
        "model_max_length": reader.fields["llama.context_length"].contents(),
    }


def contents(reader: GGUFReader, name: str) -> Any:
    found = reader.get_field(f"tokenizer.ggml.{name}")
    if found is None:
        raise TokenizerError(f"the GGUF file has no field 'tokenizer.ggml.{name}'")
    return found.contents()
