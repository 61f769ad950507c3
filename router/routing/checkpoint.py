"""What a checkpoint says of its model: how it samples when a client does not say, and how much it holds."""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, fields, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.embedding import EmbeddingLimits
from router.core.generation import unmarked
from router.routing.literal_content import LiteralContent, TokenizerFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2.nodes import Node
    from jinja2.parser import Parser

log = logging.getLogger(__name__)

_ALLOWED = {"temperature": (0, 2), "top_p": (0, 1), "top_k": (0, 1_000_000), "repetition_penalty": (0.01, 10)}


@dataclass(frozen=True, slots=True)
class SamplingDefaults:
    """OpenAI's defaults, until a checkpoint says otherwise."""

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    repetition_penalty: float = 1.0


# Where a checkpoint does not tell.
CONTEXT_TOKENS = 8192


def load_context_tokens(checkpoint_dir: Path) -> int:
    """What prompt and answer can come to together, as the checkpoint's config.json has it."""
    path = checkpoint_dir / "config.json"
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return CONTEXT_TOKENS
    tokens = config.get("max_position_embeddings") if isinstance(config, dict) else None
    return tokens if isinstance(tokens, int) and tokens > 0 else CONTEXT_TOKENS


def load_sampling_defaults(checkpoint_dir: Path) -> SamplingDefaults:
    defaults = SamplingDefaults()
    path = checkpoint_dir / "generation_config.json"
    if not path.is_file():
        return defaults
    try:
        advice = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        log.warning("%s is not valid JSON: OpenAI's sampling defaults are used", path.name)
        return defaults
    for name in (field.name for field in fields(SamplingDefaults)):
        value = advice.get(name) if isinstance(advice, dict) else None
        low, high = _ALLOWED[name]
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:
            defaults = replace(defaults, **{name: type(getattr(defaults, name))(value)})
    return defaults


_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_DICT_NAMES = frozenset(dir(dict))
_NO_TOKENIZER = TokenizerFile()


class TemplateBroken(Exception):
    """The checkpoint's template cannot be used at all."""


class ChatTemplate:
    """A compiled template with the special tokens it may name, rendered as `transformers` renders it."""

    def __init__(
        self,
        source: str,
        special_tokens: Mapping[str, str] | None = None,
        tokenizer: TokenizerFile = _NO_TOKENIZER,
    ) -> None:
        environment = _Environment(
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
        self._literal = LiteralContent.of(tokenizer, self._special_tokens.values(), source)
        self.knows_tools = "tools" in source

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None
    ) -> str:
        """The prompt up to where the assistant's answer begins; what only looks like control is marked."""
        if self._literal is not None:
            messages, tools = self._literal.mark(messages, tools)
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
            why, _ = unmarked(str(error))
            message = f"the model's chat template does not accept these messages: {why}"
            raise InflightError(ErrorKind.INVALID_REQUEST, message, "messages") from error


class _Environment(ImmutableSandboxedEnvironment):
    """Finds `message.role` in a dict at once, where Jinja looks for an attribute of that name first."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        if type(obj) is dict and attribute in obj and attribute not in _DICT_NAMES:
            return obj[attribute]
        return super().getattr(obj, attribute)


def load_template(checkpoint_dir: Path) -> ChatTemplate | None:
    """Reads the template out of a checkpoint directory; None when it has none."""
    config = _read_json(checkpoint_dir / "tokenizer_config.json")
    file = checkpoint_dir / "chat_template.jinja"
    source = file.read_text(encoding="utf-8") if file.is_file() else _named_template(config)
    if not source:
        return None
    tokens = {name: _token_text(config[name]) for name in _SPECIAL_TOKENS if config.get(name)}
    try:
        tokenizer = TokenizerFile.read(checkpoint_dir / "tokenizer.json")
    except ValueError as error:
        raise TemplateBroken(f"tokenizer.json cannot be read: {error}") from error
    return ChatTemplate(source, tokens, tokenizer)


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


def load_limits(checkpoint_dir: Path) -> EmbeddingLimits:
    """From the files that the model itself reads; for the router's start."""
    config = json.loads((checkpoint_dir / "config.json").read_text(encoding="utf-8"))
    sentences = checkpoint_dir / "sentence_bert_config.json"
    chosen = json.loads(sentences.read_text(encoding="utf-8")) if sentences.is_file() else {}
    return EmbeddingLimits(
        dimensions=config["hidden_size"],
        vocabulary=config["vocab_size"],
        max_tokens=chosen.get("max_seq_length") or config["max_position_embeddings"],
    )
