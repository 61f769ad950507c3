"""Turns chat messages into one prompt with the model's own template."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2.nodes import Node
    from jinja2.parser import Parser

_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class TemplateBroken(Exception):
    """The checkpoint's template cannot be used at all."""


class ChatTemplate:
    """A compiled template with the special tokens it may name, rendered as `transformers` renders it."""

    def __init__(self, source: str, special_tokens: Mapping[str, str] | None = None) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise TemplateBroken(f"the chat template does not compile: {error}") from error
        # Jinja copies its globals for every rendering, and its own mapping of them is slow to walk through.
        self._template.globals = dict(self._template.globals)
        self._special_tokens = dict(special_tokens or {})
        self.knows_tools = "tools" in source

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """The prompt up to where the assistant's answer begins."""
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=True,
                tools=tools or None,
                documents=None,
                **self._special_tokens,
            )
        except Exception as error:
            # Templates refuse by raising, and stumble over roles and contents their author did not expect.
            message = f"the model's chat template does not accept these messages: {error}"
            raise InflightError(ErrorKind.INVALID_REQUEST, message, "messages") from error


def load_template(checkpoint_dir: Path) -> ChatTemplate | None:
    """Reads the template out of a checkpoint directory; None when it has none."""
    config = _read_json(checkpoint_dir / "tokenizer_config.json")
    file = checkpoint_dir / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else _named_template(config)
    if not source:
        return None
    tokens = {name: _token_text(config[name]) for name in _SPECIAL_TOKENS if config.get(name)}
    return ChatTemplate(source, tokens)


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise TemplateBroken(f"{path.name} is not valid JSON: {error}") from error
    return values


def _named_template(config: Mapping[str, Any]) -> str | None:
    template = config.get("chat_template")
    if isinstance(template, list):  # several templates, each with a name
        template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
    return template


def _token_text(token: str | dict[str, Any]) -> str:
    return token if isinstance(token, str) else str(token["content"])


def _raise(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _now(format: str) -> str:
    return datetime.now().strftime(format)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which a model was never trained on.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's turns for training; for a prompt it is its content."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)
