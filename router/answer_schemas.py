"""What answers look like, as JSON schemas; bodies and queries are described by their structs."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
_NUMBER: Schema = {"type": "integer"}
_REAL: Schema = {"type": "number"}
_TIME: Schema = {"type": ["integer", "null"], "description": "Seconds since 1970."}
_ANY: Schema = {}


def _object(**properties: Any) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _array(items: Any) -> Schema:
    return {"type": "array", "items": items}


def _kind(name: Any) -> Schema:
    return {"const": name}


def _or_null(kind: str) -> Schema:
    return {"type": [kind, "null"]}


def _page(of: Schema) -> Schema:
    name = _or_null("string")
    return _object(
        object=_kind("list"), data=_array(of), first_id=name, last_id=name, has_more={"type": "boolean"}
    )


def _completion(kind: str, **choice: Any) -> Schema:
    finish = {"enum": ["stop", "length", "tool_calls", "content_filter"]}
    choices = _array(_object(index=_NUMBER, **choice, finish_reason=finish))
    usage = _object(prompt_tokens=_NUMBER, completion_tokens=_NUMBER, total_tokens=_NUMBER)
    return _object(id=TEXT, object=_kind(kind), created=_NUMBER, model=TEXT, choices=choices, usage=usage)


_READ = _object(prompt_tokens=_NUMBER, total_tokens=_NUMBER)
_RANKED = _object(index=_NUMBER, relevance_score={"type": "number"})
_SCORE = _object(index=_NUMBER, object=_kind("score"), score={"type": "number"})
_MODEL = _object(id=TEXT, object=_kind("model"), created=_NUMBER, owned_by=TEXT)
_FILE = _object(id=TEXT, object=_kind("file"), bytes=_NUMBER, created_at=_NUMBER, filename=TEXT, purpose=TEXT)
_BATCH = _object(
    id=TEXT,
    object=_kind("batch"),
    endpoint=TEXT,
    input_file_id=TEXT,
    completion_window=TEXT,
    status=TEXT,
    output_file_id=_or_null("string"),
    error_file_id=_or_null("string"),
    created_at=_NUMBER,
    completed_at=_TIME,
    request_counts=_object(total=_NUMBER, completed=_NUMBER, failed=_NUMBER),
)
_CONVERSATION = _object(
    id=TEXT, object=_kind("conversation"), created_at=_NUMBER, updated_at=_NUMBER, metadata={"type": "object"}
)
_ITEM = _object(id=TEXT, type=TEXT)

ANSWERS: dict[str, Schema] = {
    "ChatCompletion": _completion("chat.completion", message=_object(role=TEXT, content=_ANY)),
    "ChatCompletionList": _page(_completion("chat.completion", message=_object(role=TEXT, content=_ANY))),
    "MessageList": _page(_object(id=TEXT, role=TEXT, content=_ANY)),
    "Completion": _completion("text_completion", text=TEXT),
    "Reranking": _object(id=TEXT, object=_kind("list"), model=TEXT, results=_array(_RANKED), usage=_READ),
    "Scores": _object(
        id=TEXT, object=_kind("list"), created=_NUMBER, model=TEXT, data=_array(_SCORE), usage=_READ
    ),
    "Model": _MODEL,
    "ModelList": _object(object=_kind("list"), data=_array(_MODEL)),
    "File": _FILE,
    "FileList": _page(_FILE),
    "FileDeleted": _object(id=TEXT, object=_kind("file"), deleted={"const": True}),
    "Batch": _BATCH,
    "BatchList": _page(_BATCH),
    "Conversation": _CONVERSATION,
    "ConversationList": _page(_CONVERSATION),
    "Item": _ITEM,
    "ItemList": _page(_ITEM),
    "Response": _object(id=TEXT, object=_kind("response"), status=TEXT, model=TEXT, output=_array(_ITEM)),
    "InputTokens": _object(object=_kind("response.input_tokens"), input_tokens=_NUMBER),
    "Tokens": _object(count=_NUMBER, max_model_len=_NUMBER, tokens=_array(_NUMBER), token_strs=_ANY),
    "Prompt": _object(prompt=TEXT),
    "Moderation": _object(
        id=TEXT,
        model=TEXT,
        results=_array(
            _object(
                flagged={"type": "boolean"}, categories={"type": "object"}, category_scores={"type": "object"}
            )
        ),
    ),
    "AnthropicMessage": _object(
        id=TEXT,
        type=_kind("message"),
        role=_kind("assistant"),
        model=TEXT,
        content=_array(_object(type=TEXT)),
        stop_reason=TEXT,
        usage=_object(input_tokens=_NUMBER, cache_read_input_tokens=_NUMBER, output_tokens=_NUMBER),
    ),
    "AnthropicTokens": _object(input_tokens=_NUMBER),
    "AnthropicError": _object(type=_kind("error"), error=_object(type=TEXT, message=TEXT), request_id=TEXT),
    "OllamaAnswer": _object(model=TEXT, created_at=TEXT, done=_kind(True)),
    "OllamaVectors": _object(model=TEXT, embeddings=_array(_array(_REAL)), prompt_eval_count=_NUMBER),
    "OllamaVector": _object(embedding=_array(_REAL)),
    "OllamaModels": _object(models=_array(_object(name=TEXT, model=TEXT, digest=TEXT))),
    "OllamaError": _object(error=TEXT),
    "TritonError": _object(error=TEXT),
    "TritonModels": _array(_object(name=TEXT, version=TEXT, state=TEXT, reason=TEXT)),
    "Error": _object(error=_object(message=TEXT, type=TEXT, param=_ANY, code=_ANY)),
}
