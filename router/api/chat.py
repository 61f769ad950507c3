"""POST /v1/chat/completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError
from router.answering import Service, answer
from router.api.bodies import decode_chat
from router.api.calls import chat_calls, chat_messages
from router.api.dialects import ChatDialect
from router.api.tools import ToolReader, described, forced_schema, offered

if TYPE_CHECKING:
    from collections.abc import Callable

    from router.api.bodies import ChatBody
    from router.http.exchange import Exchange
    from router.record import Record


class ChatCompletions:
    def __init__(self, service: Service) -> None:
        self._service = service

    async def __call__(self, exchange: Exchange, record: Record) -> None:
        body = decode_chat(exchange.request.body)
        model = self._service.registry.find(body.model)
        if model.template is None:
            message = f"The model '{model.name}' has no chat template; use /v1/completions with a prompt"
            raise InflightError(ErrorKind.INVALID_REQUEST, message, "model")
        knows_tools = model.template.knows_tools
        messages = chat_messages(body, knows_tools)
        prompt = model.template.render(messages, described(offered(body)) if knows_tools else None)
        calls = chat_calls(body, prompt, record.request_id, record.tenant, model.defaults)
        include_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
        dialect = ChatDialect(record.request_id, model.name, include_usage=include_usage)
        await answer(exchange, record, self._service, model, calls, dialect, bool(body.stream), _reader(body))


def _reader(body: ChatBody) -> Callable[[], ToolReader] | None:
    """What finds calls in an answer, a new one for each; None where there can be none."""
    names = [tool.function.name for tool in offered(body)]
    if not names:
        return None
    is_forced = forced_schema(body) is not None
    at_most = 1 if body.parallel_tool_calls is False else None
    return lambda: ToolReader(names, is_forced, at_most)
