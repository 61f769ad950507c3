"""A model's chat template; content is never control: what a caller writes cannot become a special token."""

from __future__ import annotations

import json
import re
import unicodedata
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

import jinja2
import msgspec
from jinja2.ext import Extension, loopcontrols
from jinja2.utils import pass_context

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.call_formats import format_of
from router.core.generation import LITERAL_MARK, unmarked
from router.core.harmony import CHANNEL
from router.routing.template_sandbox import BudgetedContext, TemplateEnvironment

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from jinja2.nodes import Node
    from jinja2.parser import Parser

    from router.core.messages import Message


class AddedToken(msgspec.Struct, frozen=True):
    """As tokenizer.json has it."""

    content: str
    special: bool = False
    normalized: bool = False


class TokenizerFile(msgspec.Struct, frozen=True):
    added_tokens: tuple[AddedToken, ...] = ()
    normalizer: dict[str, Any] | None = None

    @classmethod
    def read(cls, path: Path) -> TokenizerFile:
        """Raises ValueError."""
        return msgspec.json.decode(path.read_bytes(), type=cls) if path.is_file() else cls()


_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# What the router itself says to a template.
_OWN = ("messages", "tools", "documents", "add_generation_prompt", "chat_template", "tokenize")
_MOST_SOURCE_CHARS = 1 << 20
_NO_TOKENIZER = TokenizerFile()
_TRIED = {"type": "text", "text": "inflight"}
# In the prompt of a template that prints parts as they are, because it knows nothing of them.
_PRINTED = re.compile("""["']type["']""")


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
        environment = TemplateEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols]
        )
        environment.add_filter("tojson", _to_json)
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        if len(source) > _MOST_SOURCE_CHARS:
            raise TemplateBroken(f"the chat template is longer than {_MOST_SOURCE_CHARS:,} characters")
        try:
            self._template = environment.from_string(source)
        except (
            jinja2.TemplateError,
            SyntaxError,
            RecursionError,
        ) as error:  # the latter where it is too deep
            raise TemplateBroken(f"the chat template does not compile: {error}") from error
        # Jinja copies its globals for every rendering, and its own mapping of them is slow to walk through.
        self._template.globals = dict(self._template.globals)
        self._special_tokens = dict(special_tokens or {})
        self._literal = LiteralContent.of(tokenizer, self._special_tokens.values(), source)
        self._source = source
        self._own = frozenset({*self._special_tokens, *_OWN, *self._template.globals})
        self.knows_tools = "tools" in source
        self.call_format = format_of(source)
        self.speaks_harmony = CHANNEL in source
        self.thinks = "</think>" in source or self.speaks_harmony
        # Templates of models that see take contents in parts, and some of them nothing else.
        in_parts = self._tried([_TRIED])
        self.sees = bool(in_parts) and self._tried([{"type": "image"}, _TRIED]) not in ("", in_parts)
        self._wants_parts = bool(in_parts) and not self._tried(_TRIED["text"])

    def _tried(self, content: Any) -> str:
        """What it makes of a user's content; nothing where it does not know what to do with it."""
        try:
            prompt: str = self._template.render(
                messages=[{"role": "user", "content": content}], **self._special_tokens
            )
        except Exception:
            return ""
        return prompt if _TRIED["text"] in prompt and not _PRINTED.search(prompt) else ""

    def knows(self, name: str) -> bool:
        """Whether it has a use for a variable of this name."""
        return name in self._source

    def renders_quickly(self, messages: Iterable[Message]) -> bool:
        """Whether few texts in them might have to be marked, which takes longer than all else."""
        marks_few = None if self._literal is None else self._literal.marks_few
        return marks_few is None or all(marks_few(each.content) for each in messages)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        variables: Mapping[str, Any] | None = None,
        begins_answer: bool = True,
        continues: bool = False,
    ) -> str:
        """The prompt up to where the assistant's answer begins; what only looks like control is marked.

        `variables` are what a caller says to the template itself. With `continues` the prompt ends within
        the last message.
        """
        given = variables or {}
        for name in given:
            if name in self._own or not name.isidentifier():
                text = f"chat_template_kwargs: {name} cannot be set by the client"
                raise InflightError(ErrorKind.INVALID_REQUEST, text, "chat_template_kwargs")
        if self._wants_parts:
            messages = [_in_parts(each) for each in messages]
        if self._literal is not None:
            messages, tools = self._literal.mark(messages, tools)
        try:
            if given and self._literal is not None:
                given = {name: self._literal.marked(value) for name, value in given.items()}
            prompt: str = self._template.render(
                **given,
                messages=messages,
                add_generation_prompt=begins_answer,
                tools=tools or None,
                documents=None,
                **self._special_tokens,
            )
            return _up_to(prompt, messages[-1]["content"]) if continues else prompt
        except Exception as error:
            # Templates refuse by raising, and stumble over roles and contents their author did not expect.
            why, _ = unmarked(str(error))
            message = f"the model's chat template does not accept these messages: {why}"
            raise InflightError(ErrorKind.INVALID_REQUEST, message, "messages") from error


def _in_parts(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message.get("content")
    if not isinstance(content, str):
        return message
    return {**message, "content": [{"type": "text", "text": content}]}


def _up_to(prompt: str, content: str | list[dict[str, str]]) -> str:
    """The prompt as far as the end of its last message's text, which templates may have stripped."""
    last = content if isinstance(content, str) else content[-1]["text"]
    for text in (last, last.rstrip(), last.strip()):
        if (start := prompt.rfind(text)) >= 0:
            return prompt[: start + len(text)]
    raise ValueError("its last message cannot be continued")


def load_template(checkpoint_dir: Path) -> ChatTemplate | None:
    """Reads the template out of a checkpoint directory; None when it has none."""
    config = _read_json(checkpoint_dir / "tokenizer_config.json")
    file = checkpoint_dir / "chat_template.jinja"
    if file.is_file():
        source: str | None = file.read_text(encoding="utf-8")
    else:  # that of a processor, which is there for images, goes before that of its tokenizer
        source = _named_template(_read_json(checkpoint_dir / "chat_template.json")) or _named_template(config)
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


@pass_context
def _to_json(
    context: BudgetedContext,
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which a model was never trained on.
    encoder = json.JSONEncoder(
        ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )
    if indent is None:
        return encoder.encode(value)
    pieces, chars = [], 0
    for piece in encoder.iterencode(value):  # each line of what is nested deeply may be long
        pieces.append(piece)
        chars += len(piece)
        context.require(chars)
    return "".join(pieces)


class _GenerationBlock(Extension):
    """`{% generation %}` marks the assistant's turns for training; for a prompt it is its content."""

    tags = {"generation"}  # noqa: RUF012 (Jinja's own declaration)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


_FEW = 256  # are marked in half a millisecond


class LiteralContent:
    """Marks texts in messages and tools that the tokenizer would take for a token of the template's.

    Those are all special tokens, and such added tokens as the template itself writes (`<tool_call>`). What an
    assistant said may have the latter: templates look for them there (`</think>`).
    """

    def __init__(self, special: Iterable[str], written: Iterable[str] = (), folds: bool = False) -> None:
        special = {text for text in special if text}
        texts = special | {*written}
        everything = _trie(texts)
        # All begin with a `<`, as a rule: a text without one is looked through at the speed of memory.
        firsts = {text[0] for text in texts}
        self._first = firsts.pop() if len(firsts) == 1 else ""
        self._search = re.compile(everything).search
        self._starts = re.compile(f"(?s)(?={everything}).")
        self._special_starts = re.compile(f"(?s)(?={_trie(special)}).") if special else None
        # The tokenizer changes letters before it looks for its tokens.
        self._folded_search = re.compile(_trie({_fold(text) for text in special})).search if folds else None

    @classmethod
    def of(cls, tokenizer: TokenizerFile, named: Iterable[str], template: str) -> LiteralContent | None:
        """None where there are no special tokens."""
        added = tokenizer.added_tokens
        special = {*named, *(token.content for token in added if token.special)} - {""}
        # Not runs of spaces, which some tokenizers add: those are in every text.
        written = {token.content for token in added if token.content.strip() and token.content in template}
        folds = tokenizer.normalizer is not None and any(token.normalized for token in added if token.special)
        return cls(special, written, folds) if special | written else None

    def marks_few(self, content: Any) -> bool:
        if not isinstance(content, str) or not self._first or self._folded_search is not None:
            return content is None
        at = -1
        for _ in range(_FEW):
            at = content.find(self._first, at + 1)
            if at < 0:
                return True
        return False

    def mark(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]] | None]:
        """The same values where nothing has to be marked, which is nearly always."""
        first, search, folded = self._first, self._search, self._folded_search
        for message in messages:
            content = message.get("content")
            is_plain = isinstance(content, str) and (first not in content or not search(content))
            if len(message) > 2 or folded or not is_plain:
                messages = [self._marked_message(each) for each in messages]
                break
        if tools and (folded or search(json.dumps(tools, ensure_ascii=False))):
            tools = self.marked(tools)
        return messages, tools

    def _marked_message(self, message: Mapping[str, Any]) -> dict[str, Any]:
        marked: dict[str, Any] = self.marked(dict(message))
        content = message.get("content")
        if message.get("role") == "assistant" and isinstance(content, str):
            marked["content"] = self._marked_text(content, self._special_starts)
        return marked

    def marked(self, value: Any) -> Any:
        """The same with every text in it marked."""
        if isinstance(value, str):
            return self._marked_text(value, self._starts)
        if isinstance(value, dict):
            return {self.marked(name): self.marked(each) for name, each in value.items()}
        return [self.marked(each) for each in value] if isinstance(value, list) else value

    def _marked_text(self, text: str, starts: re.Pattern[str] | None) -> str:
        marked = text if starts is None else starts.sub(rf"\g<0>{LITERAL_MARK}", text)
        if self._folded_search is not None and self._folded_search(_fold(text)):
            marked += LITERAL_MARK
        return marked


def _fold(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _trie(texts: Iterable[str]) -> str:
    """A pattern for where any of them begins; it does not try one after the other, as alternatives do."""
    rests: dict[str, set[str]] = {}
    for text in texts:
        if not text:
            return ""
        rests.setdefault(text[0], set()).add(text[1:])
    branches = (re.escape(first) + _trie(rest) for first, rest in sorted(rests.items()))
    return f"(?:{'|'.join(branches)})"
