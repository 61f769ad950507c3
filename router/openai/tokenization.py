"""POST /tokenize and /detokenize, GET /tokenizer_info: as vLLM has them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.bodies import MAX_TOOLS, ChatBody, refuse_unsupported
from router.chat.calls import chat_prompt
from router.chat.images import asked_images
from router.chat.tool_bodies import Tool, check_tools
from router.core.actions import Action
from router.core.fair_pool import unless_left
from router.core.generation import LITERAL_MARK, TokenId
from router.core.messages import Message
from router.request.decoding import decode, decode_query, invalid
from router.request.errors import respond_json
from router.request.routes import Route

if TYPE_CHECKING:
    from pathlib import Path

    from router.core.record import Record
    from router.http.exchange import Exchange
    from router.request.answer import Answers
    from router.request.token_counting import Tokenizers
    from router.routing.models import Registry, ServedModel

# A text is tokenized in one turn, in which others of its tenant wait: so many characters, or so many for each
# token of the model's context, if that is more.
_CHARACTERS = 1 << 16
_CHARACTERS_PER_TOKEN = 8
_MOST_TOKENS = 1 << 17


class TokenizeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A prompt, or messages as the model's chat template writes them."""

    model: str | None = None
    prompt: str | None = None
    messages: Annotated[list[Message], Meta(min_length=1, max_length=10_000)] | None = None
    tools: Annotated[list[Tool], Meta(max_length=MAX_TOOLS)] | None = None
    add_special_tokens: bool | None = None
    return_token_strs: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=32)] | None = None
    # Not honoured: refused unless they carry a value of _NEUTRAL.
    chat_template: Any = None
    mm_processor_kwargs: Any = None


_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "chat_template": (),
    "mm_processor_kwargs": ({},),
}


class DetokenizeBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    tokens: Annotated[list[TokenId], Meta(max_length=_MOST_TOKENS)]
    model: str | None = None


class InfoQuery(msgspec.Struct, frozen=True):
    model: str | None = None


_tokenize = msgspec.json.Decoder(TokenizeBody)
_detokenize = msgspec.json.Decoder(DetokenizeBody)


class Tokenization:
    def __init__(self, models: Registry, answers: Answers, tokenizers: Tokenizers) -> None:
        self._models = models
        self._answers = answers
        self._tokenizers = tokenizers

    async def tokenize(self, exchange: Exchange, record: Record) -> None:
        body = await self._decoded(_tokenize, exchange, record)
        refuse_unsupported(body, _NEUTRAL, "")
        if (body.prompt is None) == (body.messages is None):
            raise invalid("give either prompt or messages", "prompt")
        model = await self._model(body.model, record)
        text, adds_special_tokens = await self._text(body, model, record)
        most = max(_CHARACTERS, _CHARACTERS_PER_TOKEN * model.context_tokens)
        if len(text) > most:
            message = f"the text has {len(text)} characters; allowed: at most {most} for this model"
            raise InflightError(ErrorKind.TOO_LARGE, message, "prompt")
        encoding = self._tokenizers.encode(record.tenant, model, text, adds_special_tokens)
        ids = await unless_left(encoding, exchange.on_disconnect)
        names = None
        if body.return_token_strs:
            names = await self._tokenizers.names(record.tenant, model, ids)
        answer = {
            "count": len(ids),
            "max_model_len": model.context_tokens,
            "tokens": ids,
            "token_strs": names,
        }
        respond_json(exchange, record, answer)

    async def detokenize(self, exchange: Exchange, record: Record) -> None:
        body = await self._decoded(_detokenize, exchange, record)
        model = await self._model(body.model, record)
        decoding = self._tokenizers.decode(record.tenant, model, body.tokens)
        text = await unless_left(decoding, exchange.on_disconnect)
        respond_json(exchange, record, {"prompt": text})

    async def show(self, exchange: Exchange, record: Record) -> None:
        model = await self._model(decode_query(exchange.request.query, InfoQuery).model, record)
        place = model.checkpoint_dir
        info = None if place is None else await self._answers.aside.run(record.tenant, _info, place)
        if info is None:
            message = f"the model '{model.name}' has no tokenizer_config.json in its checkpoint"
            raise InflightError(ErrorKind.UNSUPPORTED, message, "model")
        respond_json(exchange, record, {**info, "max_model_len": model.context_tokens})

    async def _decoded(self, decoder: msgspec.json.Decoder[Any], exchange: Exchange, record: Record) -> Any:
        raw = exchange.request.body
        return await self._answers.aside.when_large(len(raw), record.tenant, decode, decoder, raw, True)

    async def _model(self, name: str | None, record: Record) -> ServedModel:
        """The one that is named, or the only one; its caller may use it."""
        if name is None:
            names = [model.name for model in self._models]
            if len(names) != 1:
                raise invalid(f"model: name one of {', '.join(names)}", "model")
            (name,) = names
        model = self._models.find(name, record)
        await self._answers.permits.foresee(record, model.name, 1)
        return model

    async def _text(self, body: TokenizeBody, model: ServedModel, record: Record) -> tuple[str, bool]:
        """And whether special tokens are added to it: a template writes them itself."""
        if body.messages is None:
            return body.prompt or "", body.add_special_tokens is not False
        template = model.template
        if template is None:
            raise invalid(f"The model '{model.name}' has no chat template; send a prompt", "messages")
        check_tools(body.tools, None)
        if asked_images(body.messages, model):
            message = "messages: the tokens of images are not known before the model has read them"
            raise InflightError(ErrorKind.UNSUPPORTED, message, "messages")
        chat = ChatBody(
            model=model.name,
            messages=body.messages,
            tools=body.tools,
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
        )
        text = await self._answers.aside.run(record.tenant, chat_prompt, chat, template)
        if LITERAL_MARK in text:
            message = "messages: where they name special tokens, only the engine knows the tokens"
            raise InflightError(ErrorKind.UNSUPPORTED, message, "messages")
        return text, bool(body.add_special_tokens)


def _info(checkpoint: Path) -> dict[str, Any] | None:
    """What the checkpoint says of its tokenizer, with the chat template."""
    try:
        info: dict[str, Any] = json.loads((checkpoint / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    template = checkpoint / "chat_template.jinja"
    if template.is_file():
        info["chat_template"] = template.read_text(encoding="utf-8")
    return {"tokenizer_class": None, "chat_template": None, **info}


def routes(models: Registry, answers: Answers, tokenizers: Tokenizers) -> list[Route]:
    api = Tokenization(models, answers, tokenizers)
    return [
        Route("POST", "/tokenize", api.tokenize, "Tokenize a prompt or messages", TokenizeBody,
              "Tokens", asks_model=True, action=Action.INFERENCE_RUN),
        Route("POST", "/detokenize", api.detokenize, "Detokenize tokens", DetokenizeBody, "Prompt",
              asks_model=True, action=Action.INFERENCE_RUN),
        Route("GET", "/tokenizer_info", api.show, "The tokenizer settings of a model's checkpoint",
              query=InfoQuery, action=Action.MODEL_READ),
    ]  # fmt: skip
