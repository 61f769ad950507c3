"""How a decoder that judges pairs wants them written: as its chat template writes a query and a document."""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jinja2
import tokenizers
from jinja2.sandbox import ImmutableSandboxedEnvironment

from python_backend.engine.checkpoint import unusable
from python_backend.engine.checkpoint.safetensors_files import read_json
from python_backend.text.literal_encoder import LiteralEncoder

_QUERY, _DOCUMENT = "\ue000query\ue001", "\ue000document\ue001"


@dataclass(frozen=True, slots=True)
class PairTemplate:
    before: str
    between: str
    after: str


# As its authors have it, for a search.
QWEN3_RERANKER = PairTemplate(
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the "
    'Instruct provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
    "<Instruct>: Given a web search query, retrieve relevant passages that answer the query\n<Query>: ",
    "\n<Document>: ",
    "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
)


def read_template(directory: Path) -> PairTemplate | None:
    """None where no chat template knows of queries and documents."""
    source = _source(directory)
    if not all(re.search(f"['\"]{role}['\"]", source) for role in ("query", "document")):
        return None
    messages = [{"role": "query", "content": _QUERY}, {"role": "document", "content": _DOCUMENT}]
    if instruction := _instruction(directory):
        messages.insert(0, {"role": "system", "content": instruction})
    try:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        written = environment.from_string(source).render(messages=messages, add_generation_prompt=True)
    except jinja2.TemplateError as error:
        raise unusable(f"{directory}: the chat template cannot be used: {error}") from error
    parts = re.split(f"{_QUERY}|{_DOCUMENT}", written)
    if len(parts) != 3 or written.index(_QUERY) > written.index(_DOCUMENT):
        raise unusable(
            f"{directory}: the chat template must contain the query once, followed by the document once"
        )
    return PairTemplate(*parts)


def _source(directory: Path) -> str:
    path = directory / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    config = directory / "tokenizer_config.json"
    told = read_json(config).get("chat_template") if config.is_file() else None
    return told if isinstance(told, str) else ""


def _instruction(directory: Path) -> str:
    path = directory / "config_sentence_transformers.json"
    told = read_json(path) if path.is_file() else {}
    prompts = told.get("prompts") or {}
    return str(prompts.get(told.get("default_prompt_name") or "", ""))


class WrittenPairs:
    """Pairs as their template has them; what looks like a special token in their texts is letters."""

    def __init__(self, backend: tokenizers.Tokenizer, template: PairTemplate) -> None:
        self._encoder = LiteralEncoder(backend)
        self._mark = f"\ue000{secrets.token_hex(16)}\ue001"
        self._template = template

    def encode(self, pairs: Sequence[tuple[str, str]], max_tokens: int) -> list[list[int]]:
        """What is longer loses the end of its document."""
        template = self._template
        literal = [tuple(self._encoder.marked(text, self._mark) for text in pair) for pair in pairs]
        texts = [f"{template.before}{first}{template.between}{second}" for first, second in literal]
        *found, end = self._encoder.encode_batch([*texts, template.after], self._mark, False)
        return [[*ids[: max_tokens - len(end)], *end] for ids in found]
