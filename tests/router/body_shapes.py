"""Bodies, headers and queries that cost most for their size, and every door that takes them.

A shape is a JSON value; a door has a hole for one. The tests and `python -m benchmarks.attacks` share both.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from router.triton.protocol import service_pb2
from tests.router.running import EMBEDDER, MODEL

ROOM_BYTES = 1_000_000  # of the megabyte that a body may have
_HEADER_BYTES = 30_000  # of 32 KiB
CASCADE = "thrifty"
JSON = {"content-type": "application/json"}


@dataclass(frozen=True)
class Attempt:
    """One request that is sent; `name` says its door and its shape."""

    name: str
    method: str
    path: str
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def listed(element: str) -> bytes:
    return f"[{','.join([element] * (ROOM_BYTES // (len(element) + 1)))}]".encode()


def text(piece: str) -> bytes:
    return b'"%b"' % (piece.encode() * (ROOM_BYTES // len(piece.encode())))


def named(value: str) -> bytes:
    """An object of many names, as short as they can be."""
    count = ROOM_BYTES // (len(value) + 10)
    pairs = ",".join(f'"{number:x}":{value}' for number in range(count))
    return b"{%b}" % pairs.encode()


def repeated(pair: str) -> bytes:
    """One name, again and again."""
    return b"{%b}" % ",".join([pair] * (ROOM_BYTES // (len(pair) + 1))).encode()


def nested(opening: str, closing: str, depth: int) -> bytes:
    return (opening * depth + "1" + closing * depth).encode()


SHAPES: dict[str, bytes] = {
    "quotes": text('\\"'),
    "prose": text("The quick brown fox, it jumps over 12 lazy dogs. "),
    "not ASCII": text("é😀"),
    "escaped letters": text("\\u0041"),
    "escaped pairs": text("\\ud83d\\ude00"),
    "backslashes": text("\\\\"),
    "brackets in a text": text("[{"),
    "commas in a text": text("1,"),
    "half characters": text("\\ud800"),
    "base64": b'"data:image/png;base64,%b"' % b64encode(b"\x89PNG" * (ROOM_BYTES // 6)),
    "lists": listed("[]"),
    "objects": listed("{}"),
    "empty texts": listed('""'),
    "short texts": listed('"a"'),
    "words": listed('"abcdefgh"'),
    "messages": listed('{"role":"user","content":"x"}'),
    "parts": listed('{"type":"text","text":"x"}'),
    "digits": listed("1"),
    "token ids": listed("12345"),
    "lists of token ids": listed("[123,456]"),
    "fractions": listed("1.5"),
    "exact fractions": listed("0.12345678901234567"),
    "large exponents": listed("1e300"),
    "half-way fractions": listed("9007199254740993.0"),
    "smallest fractions": listed("2.2250738585072011e-308"),
    "integers of 4,000 digits": listed("1" * 4_000),
    "an integer of a million digits": b"1" * ROOM_BYTES,
    "a fraction of a million digits": b"0." + b"1" * ROOM_BYTES,
    "names": named("1"),
    "names of lists": named("[]"),
    "names of large exponents": named("1e300"),
    "one name again": repeated('"temperature":1e300'),
    "deep lists": nested("[", "]", ROOM_BYTES // 2),
    "lists as deep as may be": nested("[", "]", 900),
    "deep objects": nested('{"a":', "}", ROOM_BYTES // 7),
    "spaces": b" " * ROOM_BYTES + b"1",
    "quotes that are none": b'"' * ROOM_BYTES,
}


@dataclass(frozen=True)
class Door:
    """Where a body goes; `%b` in the body is the hole, and `%n` how many values are in it."""

    name: str
    path: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    method: str = "POST"

    def attempt(self, shape: str, value: bytes) -> Attempt:
        body = self.body.replace(b"%b", value).replace(b"%n", b"%d" % (value.count(b",") + 1))
        return Attempt(f"{self.name}: {shape}", self.method, self.path, body, self.headers)


def _fields(**fields: object) -> bytes:
    """A body with a hole where a value is HOLE."""
    return (
        json.dumps(fields, separators=(",", ":"))
        .encode()
        .replace(b'"HOLE"', b"%b")
        .replace(b'"COUNT"', b"%n")
    )


_ASKED = [{"role": "user", "content": "hi"}]
_CHAT = "/v1/chat/completions"
_MADE = {"model": MODEL, "messages": _ASKED}
_CACHED = (("cache-control", "max-age=60"),)
_SAID = [{"role": "user", "content": "HOLE"}]
_SOME = {"a": "HOLE"}
_KEYED = (("idempotency-key", "one"),)
_TOOL = {"type": "function", "function": {"name": "f", "parameters": _SOME}}
_SCHEMA = {"type": "json_schema", "json_schema": {"name": "a", "schema": _SOME}}
_INFER = f"/v2/models/{MODEL}/infer"
_WORDS = {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
_TOKENS = {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [1]}
_WEIGHTS = {"name": "embedding_bias_weights", "datatype": "FP32", "shape": [1, "COUNT"], "data": "HOLE"}
_BATCH = {"input_file_id": "a", "endpoint": _CHAT, "completion_window": "24h"}

DOORS = (
    Door("chat, whole", _CHAT, b"%b"),
    Door("chat, content", _CHAT, _fields(model=MODEL, messages=_SAID)),
    Door("chat, messages", _CHAT, _fields(model=MODEL, messages="HOLE")),
    Door("chat, tool", _CHAT, _fields(**_MADE, tools=[_TOOL])),
    Door("chat, schema", _CHAT, _fields(**_MADE, response_format=_SCHEMA)),
    Door("chat, biases", _CHAT, _fields(**_MADE, logit_bias="HOLE")),
    Door("chat, unknown field", _CHAT, _fields(**_MADE, unknown="HOLE")),
    Door("chat, cached", _CHAT, _fields(model=MODEL, messages=_SAID), _CACHED),
    Door("chat, cached tool", _CHAT, _fields(**_MADE, tools=[_TOOL]), _CACHED),
    Door("chat, keyed", _CHAT, _fields(model=MODEL, messages=_SAID), _KEYED),
    Door("chat, cascade", _CHAT, _fields(model=CASCADE, messages=_SAID)),
    Door("chat, cascade's tool", _CHAT, _fields(model=CASCADE, messages=_ASKED, tools=[_TOOL])),
    Door("completions, prompt", "/v1/completions", _fields(model=MODEL, prompt="HOLE", max_tokens=1)),
    Door("completions, stop", "/v1/completions", _fields(model=MODEL, prompt="a", stop="HOLE")),
    Door("embeddings, input", "/v1/embeddings", _fields(model=EMBEDDER, input="HOLE")),
    Door("embeddings, cached", "/v1/embeddings", _fields(model=EMBEDDER, input="HOLE"), _CACHED),
    Door("rerank, documents", "/v1/rerank", _fields(model=EMBEDDER, query="a", documents="HOLE")),
    Door("score, text", "/v1/score", _fields(model=EMBEDDER, text_1="a", text_2="HOLE")),
    Door("responses, input", "/v1/responses", _fields(model=MODEL, input="HOLE")),
    Door("responses, tool", "/v1/responses",
         _fields(model=MODEL, input="a", tools=[{"type": "function", "name": "f", "parameters": _SOME}])),
    Door("responses, metadata", "/v1/responses", _fields(model=MODEL, input="a", metadata="HOLE")),
    Door("input tokens", "/v1/responses/input_tokens", _fields(model=MODEL, input="HOLE")),
    Door("conversations, items", "/v1/conversations", _fields(items="HOLE")),
    Door("moderations, input", "/v1/moderations", _fields(input="HOLE")),
    Door("tokenize", "/tokenize", _fields(model=MODEL, prompt="HOLE")),
    Door("detokenize", "/detokenize", _fields(model=MODEL, tokens="HOLE")),
    Door("batches, metadata", "/v1/batches", _fields(**_BATCH, metadata="HOLE")),
    Door("messages, content", "/v1/messages",
         _fields(model=MODEL, max_tokens=1, messages=_SAID)),
    Door("messages, tool", "/v1/messages",
         _fields(model=MODEL, max_tokens=1, messages=_ASKED, tools=[{"name": "f", "input_schema": _SOME}])),
    Door("messages, system", "/v1/messages",
         _fields(model=MODEL, max_tokens=1, messages=_ASKED, system="HOLE")),
    Door("Ollama, content", "/api/chat",
         _fields(model=MODEL, stream=False, messages=_SAID)),
    Door("Ollama, options", "/api/generate", _fields(model=MODEL, prompt="a", options=_SOME)),
    Door("Ollama, format", "/api/generate", _fields(model=MODEL, prompt="a", format="HOLE")),
    Door("Ollama, embed", "/api/embed", _fields(model=EMBEDDER, input="HOLE")),
    Door("infer, data", _INFER, _fields(inputs=[_WORDS, _TOKENS, _WEIGHTS])),
    Door("infer, inputs", _INFER, _fields(inputs="HOLE")),
    Door("infer, parameters", _INFER, _fields(inputs=[_WORDS, _TOKENS], parameters="HOLE")),
    Door("infer, text", _INFER, _fields(inputs=[{**_WORDS, "data": ["HOLE"]}, _TOKENS])),
    Door("generate, text", f"/v2/models/{MODEL}/generate", _fields(text_input="HOLE", max_tokens=1)),
    Door("generate, field", f"/v2/models/{MODEL}/generate",
         _fields(text_input="a", max_tokens=1, embedding_bias_weights="HOLE")),
    Door("administration, tenant", "/admin/tenants", _fields(name="HOLE")),
    Door("administration, release", "/admin/releases", b"%b"),
    Door("session", "/admin/session", _fields(key="HOLE")),
)  # fmt: skip


def bodies() -> Iterator[Attempt]:
    """Every shape through every door."""
    for door in DOORS:
        for shape, value in SHAPES.items():
            yield door.attempt(shape, value)


_LINES: dict[str, Callable[[int], str]] = {
    "quotes": lambda size: '"' * size,
    "commas": lambda size: "," * size,
    "pairs": lambda size: "a=b," * (size // 4),
    "spaces": lambda size: "a" + " " * (size - 2) + "a",
    "digits": lambda size: "1" * size,
    "percent signs": lambda size: "%41" * (size // 3),
    "a trace and more": lambda size: "00-" + "a" * 32 + "-" + "b" * 16 + "-01" + "-" * (size - 60),
    "dots": lambda size: "a." * (size // 2),
    "colons": lambda size: "[" + ":" * (size - 2),
    "ages": lambda size: "max-age=" + "9" * (size - 8),
}
_HEADERS = (
    "cache-control", "idempotency-key", "authorization", "traceparent", "tracestate", "baggage", "host",
    "origin", "cookie", "content-type", "accept", "last-event-id", "x-request-id", "x-inflight-deadline",
    "x-inflight-release", "x-inflight-conversation", "x-inflight-tier", "inference-header-content-length",
    "user-agent", "if-none-match",
)  # fmt: skip
_QUERIES = ("/v1/files", "/v1/batches", "/v1/chat/completions", "/v1/conversations/a/items", "/admin/usage")


def heads() -> Iterator[Attempt]:
    """Every header, and the queries of what has any, as long as they may be."""
    body = json.dumps(_MADE).encode()
    for header in _HEADERS:
        for shape, line in _LINES.items():
            value = line(_HEADER_BYTES)
            yield Attempt(f"{header}: {shape}", "POST", _CHAT, body, ((header, value),))
    for path in _QUERIES:
        for shape, line in _LINES.items():
            query = line(_HEADER_BYTES).replace(" ", "+").replace(",", "&")
            yield Attempt(f"query of {path}: {shape}", "GET", f"{path}?{query}")


def paths() -> Iterator[Attempt]:
    for shape, line in _LINES.items():
        rest = line(_HEADER_BYTES).replace(" ", "+")
        for path in ("/v1/files/", "/v2/models/", "/ui/", "/"):
            yield Attempt(f"{path}: {shape}", "GET", path + rest)


_FORM = (("content-type", "multipart/form-data; boundary=x"),)


def forms() -> Iterator[Attempt]:
    """Uploads of a form of many parts, of long names, and of what is no form."""
    part = b'--x\r\ncontent-disposition: form-data; name="a"\r\n\r\n1\r\n'
    names = b'--x\r\ncontent-disposition: form-data; name="%b"\r\n\r\n1\r\n--x--\r\n'
    shapes = {
        "parts": part * (ROOM_BYTES // len(part)) + b"--x--\r\n",
        "one long name": names % (b"a" * ROOM_BYTES),
        "quotes in a name": names % (b'\\"' * (ROOM_BYTES // 2)),
        "boundaries": b"--x\r\n" * (ROOM_BYTES // 5),
        "nearly boundaries": b"\r\n--" * (ROOM_BYTES // 4),
    }
    for shape, body in shapes.items():
        yield Attempt(f"upload: {shape}", "POST", "/v1/files", body, _FORM)


_ANY_DOORS = ("chat, tool", "chat, content")
# Each is one of a kind: what is many, what is slow, what is deep, and what has to be escaped.
_WORST_SHAPES = (
    "quotes", "lists", "short texts", "digits", "exact fractions", "large exponents", "names",
    "one name again", "deep objects",
)  # fmt: skip


def worst_bodies() -> Iterator[Attempt]:
    """Every shape through doors that take anything, and the worst through all."""
    for door in DOORS:
        for shape, value in SHAPES.items():
            if door.name in _ANY_DOORS or shape in _WORST_SHAPES:
                yield door.attempt(shape, value)


def messages() -> dict[str, bytes]:
    """Protobufs of Triton's gRPC, of many parts each."""
    kind = service_pb2.ModelInferRequest
    numbers = {field.name: field.number for field in kind.DESCRIPTOR.fields}

    def empty(name: str) -> bytes:
        return bytes([numbers[name] << 3 | 2, 0]) * (ROOM_BYTES // 2)

    def of(dtype: str, **contents: list[Any]) -> bytes:
        request = kind(model_name=MODEL)
        tensor = request.inputs.add(name="embedding_bias_weights", datatype=dtype, shape=[1, 1])
        for name, values in contents.items():
            getattr(tensor.contents, name).extend(values)
        return bytes(request.SerializeToString())

    request = kind(model_name=MODEL)
    request.inputs.add(name="text_input", datatype="BYTES", shape=[1] * (ROOM_BYTES // 2))
    biases = kind(model_name=MODEL)
    biases.parameters["inflight_logit_bias"].string_param = SHAPES["names of large exponents"].decode()
    pair = bytes([numbers["parameters"] << 3 | 2, 12, 10, 6])
    pairs = b"".join(pair + b"%06d" % number + b"\x12\0\x12\0"[:4] for number in range(70_000))
    return {
        **{
            f"empty {name}": empty(name) for name in ("inputs", "outputs", "raw_input_contents", "parameters")
        },
        "parameters": pairs,
        "fields that nobody knows": b"\xf8\x01\0" * (ROOM_BYTES // 3),
        "a shape": request.SerializeToString(),
        "numbers": of("INT32", int_contents=[1] * 900_000),
        "fractions": of("FP32", fp32_contents=[1.5] * 240_000),
        "texts": of("BYTES", bytes_contents=[b""] * 480_000),
        "biases": biases.SerializeToString(),
    }


def all_attempts() -> Iterator[Attempt]:
    yield from bodies()
    yield from heads()
    yield from paths()
    yield from forms()
