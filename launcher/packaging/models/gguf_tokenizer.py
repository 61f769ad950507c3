"""Writes the tokenizer that a GGUF file carries as Hugging Face's files, for text models and router."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from launcher.packaging.models.gguf_vocabularies import (
    SPLITTINGS,
    TokenizerError,
    Vocabulary,
    byte_level,
    sentencepiece,
)
from python_backend.gguf.header import read_header
from python_backend.wire.errors import InflightError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tokenizers import Tokenizer

    from launcher.progress import Progress

    Fields = Mapping[str, Any]

PREFIX = "tokenizer.ggml."
# By what name the files know a token -> by what name GGUF does.
ROLES = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}


def write_tokenizer(
    gguf_path: Path, into: Path, progress: Progress, sampling: Mapping[str, float] | None = None
) -> None:
    """Write tokenizer.json, tokenizer_config.json, chat_template.jinja and generation_config.json."""
    with progress.stage("Writing the tokenizer"):
        try:
            fields = read_header(gguf_path, with_texts=True).fields
        except InflightError as error:
            raise TokenizerError(str(error)) from error
        build_tokenizer(fields).save(str(into / "tokenizer.json"))
        write_json(into / "tokenizer_config.json", tokenizer_settings(fields))
        write_json(into / "generation_config.json", generation_settings(fields) | sampling_settings(sampling))
        if (template := fields.get("tokenizer.chat_template")) is not None:
            (into / "chat_template.jinja").write_text(template, encoding="utf-8")


def build_tokenizer(fields: Fields) -> Tokenizer:
    family = needed(fields, "model")
    if family == "llama":
        return sentencepiece(read_vocabulary(fields, adds_bos=True))
    name = needed(fields, "pre") if family == "gpt2" else None
    if name not in SPLITTINGS:
        raise TokenizerError(
            f"the GGUF file's tokenizer is {family!r} with pre-tokenizer {name!r}; known are 'llama', and "
            f"'gpt2' with one of {', '.join(SPLITTINGS)}"
        )
    return byte_level(read_vocabulary(fields, SPLITTINGS[name].adds_bos), SPLITTINGS[name])


def read_vocabulary(fields: Fields, adds_bos: bool) -> Vocabulary:
    """`adds_bos` is what holds where the file does not say."""
    tokens = needed(fields, "tokens")
    bos_id = fields.get(f"{PREFIX}bos_token_id")
    return Vocabulary(
        tokens,
        needed(fields, "token_type"),
        merges=fields.get(f"{PREFIX}merges", ()),
        scores=fields.get(f"{PREFIX}scores", ()),
        adds_space_prefix=fields.get(f"{PREFIX}add_space_prefix", True),
        bos_token=None if bos_id is None else tokens[bos_id],
        adds_bos=fields.get(f"{PREFIX}add_bos_token", adds_bos),
    )


def tokenizer_settings(fields: Fields) -> dict[str, Any]:
    tokens = needed(fields, "tokens")
    context_tokens = fields.get(f"{fields.get('general.architecture')}.context_length")
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **{f"{role}_token": tokens[token_id] for role, token_id in special_ids(fields).items()},
        "clean_up_tokenization_spaces": False,
        **({} if context_tokens is None else {"model_max_length": context_tokens}),
    }


def generation_settings(fields: Fields) -> dict[str, Any]:
    """A chat model may end its turn with another token than a text."""
    ids: dict[str, Any] = {
        f"{role}_token_id": token_id for role, token_id in special_ids(fields).items() if role != "unk"
    }
    end_of_turn = fields.get(f"{PREFIX}eot_token_id")
    if "eos_token_id" in ids and end_of_turn not in (None, ids["eos_token_id"]):
        ids["eos_token_id"] = [ids["eos_token_id"], end_of_turn]
    return ids


def sampling_settings(sampling: Mapping[str, float] | None) -> dict[str, Any]:
    return {"do_sample": True, **sampling} if sampling else {}


def special_ids(fields: Fields) -> dict[str, int]:
    return {
        role: fields[f"{PREFIX}{name}_token_id"]
        for role, name in ROLES.items()
        if f"{PREFIX}{name}_token_id" in fields
    }


def needed(fields: Fields, name: str) -> Any:
    if f"{PREFIX}{name}" not in fields:
        raise TokenizerError(f"the GGUF file has no field '{PREFIX}{name}'")
    return fields[f"{PREFIX}{name}"]


def write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
