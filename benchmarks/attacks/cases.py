"""The cases: every attack by which a tenant or a stranger could take something from a neighbour's answers."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

from benchmarks.attacks.case import Case, Send, Sender, bytes_held, get, post
from benchmarks.attacks.serving import CASCADE, CODER, HOSTILE, LOOPING, SEER
from tests.router.chat.pictures import data_url, picture
from tests.router.chat.test_image_headers import packed_text, png
from tests.router.content.documents.pdf_files import pdf, pdf_bomb
from tests.router.running import MODEL
from tests.router.test_hostile_answers import looped_schema

CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
_WORDS = "The quick brown fox jumps over the lazy dog 12345 times. "
_CACHED = {"cache-control": "max-age=1"}


def chat(content: Any = "Say hello.", model: str = MODEL, **fields: object) -> bytes:
    messages = [{"role": "user", "content": content}]
    return json.dumps({"model": model, "messages": messages, "max_tokens": 8, **fields}).encode()


def long_text(size: int = 1_000_000) -> str:
    return (_WORDS * (size // len(_WORDS) + 1))[:size]


def shown(image: bytes, count: int = 8) -> bytes:
    return chat([{"type": "image_url", "image_url": {"url": data_url(image)}}] * count, SEER)


def about(kind: str, data: bytes, files: int = 1) -> bytes:
    file = {"file_data": f"data:{kind};base64,{b64encode(data).decode()}", "filename": "a"}
    return chat([{"type": "file", "file": file}] * files)


def with_tool(content: str, schema: dict[str, object]) -> bytes:
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    return chat(content, CODER, tools=[tool])


def long_response() -> bytes:
    body = {"model": MODEL, "input": long_text(), "truncation": "auto", "max_output_tokens": 16}
    return json.dumps(body).encode()


async def a_long_conversation(sender: Sender) -> str:
    """12 MB, of which it returns the id."""
    headers = sender.headers("tenant")
    made = (await sender.http.post("/v1/conversations", json={}, headers=headers)).json()["id"]
    item = {"items": [{"role": "user", "content": long_text()}]}
    for _ in range(12):
        await sender.http.post(f"/v1/conversations/{made}/items", json=item, headers=headers)
    return str(made)


async def ask_in_it(sender: Sender, number: int) -> None:
    body = {"model": MODEL, "input": "hi", "conversation": sender.prepared, "truncation": "auto"}
    await sender.http.post(RESPONSES, json=body, headers=sender.headers("tenant"))


async def unique_key(sender: Sender, number: int) -> None:
    headers = {**sender.headers("tenant"), "idempotency-key": f"{id(sender)}-{number}"}
    await sender.http.post(CHAT, content=chat(), headers={**headers, "content-type": "application/json"})


async def large_batch(sender: Sender, number: int) -> None:
    """20,000 requests, which are all looked at before it is accepted."""
    line = {"custom_id": "{}", "method": "POST", "url": CHAT, "body": json.loads(chat())}
    text = json.dumps(line)
    lines = "\n".join(text.replace("{}", str(each), 1) for each in range(20_000)).encode()
    await upload_and_batch(sender, lines)


async def small_batch(sender: Sender, number: int) -> None:
    line = {"custom_id": "1", "method": "POST", "url": CHAT, "body": json.loads(chat())}
    await upload_and_batch(sender, json.dumps(line).encode())


async def upload_and_batch(sender: Sender, lines: bytes) -> None:
    headers = sender.headers("tenant")
    form = {"purpose": "batch"}
    made = await sender.http.post("/v1/files", files={"file": ("a.jsonl", lines)}, data=form, headers=headers)
    body = {"input_file_id": made.json()["id"], "endpoint": CHAT, "completion_window": "24h"}
    await sender.http.post("/v1/batches", json=body, headers=headers)


def head(extra: bytes) -> bytes:
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n" + extra


def endless_simulation() -> bytes:
    body = {"model": MODEL, "rate": 0.000_001, "variants": [{"policy": "objectives"}] * 4}
    return json.dumps(body).encode()


HONEST: Send = post(CHAT, chat)
HONEST_LONG: Send = post(CHAT, lambda: chat(long_text()))
QUOTES = '"' * 490_000  # a megabyte as JSON

REQUESTS = (
    Case("quotes, to be cached", post(CHAT, lambda: chat(QUOTES), "cached", _CACHED),
         post(CHAT, lambda: chat(long_text()), "cached", _CACHED), 4),
    Case("only-if-cached, never there",
         post(CHAT, chat, "cached", {"cache-control": "only-if-cached"}),
         post(CHAT, chat, "cached", _CACHED), 40),
    Case("1 MB without a key", post(CHAT, lambda: chat(long_text()), ""), HONEST, 10),
    Case("1 MB at 0 requests a minute", post(CHAT, lambda: chat(long_text()), "limited"), HONEST, 10),
    Case("1 MB responses to be cut", post(RESPONSES, long_response), HONEST_LONG, 4),
    Case("a conversation of 12 MB", ask_in_it, HONEST, 4, a_long_conversation),
    Case("a cascade's name in escapes, 1 MB", post(CHAT, lambda: chat("\u00e9" * 160_000, CASCADE)),
         post(CHAT, lambda: chat(long_text(), CASCADE)), 4),
    Case("keys that are used once", unique_key, HONEST, 40),
    Case("batches of 20,000 requests", large_batch, small_batch, 1),
    Case("a query of NULs", get(f"{CHAT}?model=a%00b"), get(f"{CHAT}?model=ab"), 40),
)  # fmt: skip
CONTENT = (
    Case("images that unpack to 160 MB", post(CHAT, lambda: shown(png(*[packed_text()] * 20))),
         post(CHAT, lambda: shown(picture(size=(200, 200)))), 10),
    Case("PDFs that unpack to 24 MB", post(CHAT, lambda: about("application/pdf", pdf_bomb(24 << 20))),
         post(CHAT, lambda: about("application/pdf", pdf("A page"))), 8),
    Case("20 tables a request", post(CHAT, lambda: about("text/csv", b'a;"b";c\n' * 4_000, 20)),
         post(CHAT, lambda: about("text/csv", b"a;b;c\n" * 40, 20)), 4),
    Case("texts to be counted, 1 MB",
         post("/tokenize", lambda: json.dumps({"model": MODEL, "prompt": long_text()}).encode()),
         HONEST_LONG, 4),
)  # fmt: skip
ANSWERS = (
    Case("beginnings of calls in an answer", post(CHAT, lambda: with_tool(HOSTILE, {})),
         post(CHAT, lambda: with_tool("hi", {})), 10),
    Case("a tool's schema that leads into itself", post(CHAT, lambda: with_tool(HOSTILE, looped_schema())),
         post(CHAT, lambda: with_tool("hi", looped_schema())), 5),
    Case("a chat template with nested loops", post(CHAT, lambda: chat(model=LOOPING)), HONEST, 4),
)  # fmt: skip
DOORS = (
    Case("/metrics, by a tenant's admin", get("/metrics", "admin"), HONEST, 20),
    Case("/metrics, by the platform", get("/metrics", "platform"), HONEST, 4),
    Case("/openapi.json", get("/openapi.json", ""), get("/v1/models"), 20),
    Case("health, by strangers", get("/health", ""), get("/v1/models"), 100),
    Case("wrong keys", post(CHAT, chat, "wrong"), HONEST, 100),
    Case("connections that say nothing", bytes_held(b"", 1.5), bytes_held(head(b"\r\n"), 0.1), 100,
         at_once=512),
    Case("headers of 31 KB", bytes_held(head(b"X: " + b"a" * 31_000), 1.0), HONEST, 50, at_once=256),
    Case("bodies that never end", bytes_held(head(b"Content-Length: 900000\r\n\r\n" + b"-" * 8192), 1.5),
         HONEST, 40, at_once=256),
    Case("a simulation without an end", post("/admin/simulations", endless_simulation, "platform"),
         HONEST, 2),
)  # fmt: skip
CASES = (*REQUESTS, *CONTENT, *ANSWERS, *DOORS)
