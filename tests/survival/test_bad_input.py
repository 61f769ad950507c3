"""Requests that nobody should send: T21 to T24 and T26 to T30, against the whole stack."""

from __future__ import annotations

import asyncio
import gzip
import json
import random
import re
import string
import time
from typing import Any

import httpx
import msgspec
from tokenizers import Tokenizer

from tests.pace import patience
from tests.survival.conftest import Fortress, cpu_of

LIMIT = 1 << 20
POST = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"


async def raw(quick: Fortress, data: bytes, timeout_s: float = 30.0) -> bytes:
    """Everything that the server says to these bytes before it closes, or falls silent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", quick.port)
    answer = b""
    try:
        writer.write(data)
        await writer.drain()
        while piece := await asyncio.wait_for(reader.read(65536), timeout_s):
            answer += piece
    except (ConnectionError, asyncio.TimeoutError):
        pass
    writer.close()
    return answer


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def with_key(quick: Fortress, extra: str, body: bytes = b"") -> bytes:
    return f"{POST}authorization: Bearer {quick.key}\r\n{extra}\r\n\r\n".encode() + body


async def serves(quick: Fortress, times: int = 1) -> None:
    async with quick.client() as http:
        answers = await asyncio.gather(
            *(http.post("/v1/completions", json=quick.completion(5)) for _ in range(times))
        )
    assert {each.json()["choices"][0]["text"] for each in answers} == {quick.text_of(5)}


async def test_t21_bodies_beyond_the_limit_are_refused_at_once_and_not_kept(sheet: Fortress) -> None:
    quick = sheet
    before = quick.router.memory_info().rss
    data = with_key(quick, f"content-length: {LIMIT + 1}")
    began_s = cpu_of(quick.router)
    answers = await asyncio.gather(*(raw(quick, data) for _ in range(100)))
    assert cpu_of(quick.router) - began_s <= patience(0.5), (
        "all of them, so that each has its answer in 0.1 s"
    )
    assert {status(each) for each in answers} == {413}
    assert all(b"1048576" in each for each in answers)
    assert quick.router.memory_info().rss - before <= 5 << 20
    await serves(quick)


async def test_t22_bombs_are_refused_and_cost_nothing(sheet: Fortress, thorough: bool) -> None:
    quick = sheet
    rounds = 100 if thorough else 10
    nested = b"[" * 200_000
    bomb = gzip.compress(b" " * 1_000_000)
    chunks = b"1\r\n{\r\n" * 500_000
    deep = with_key(quick, f"connection: close\r\ncontent-length: {len(nested)}", nested)
    packed = with_key(
        quick, f"connection: close\r\ncontent-encoding: gzip\r\ncontent-length: {len(bomb)}", bomb
    )
    tiny = with_key(quick, "transfer-encoding: chunked", chunks)
    await asyncio.gather(*(raw(quick, each) for each in (deep, packed, tiny)))
    before = quick.router.memory_info().rss
    for _ in range(rounds):
        assert [status(await raw(quick, each)) for each in (deep, packed)] == [400, 415]
        # Whoever still sends when the server has closed may find no answer but that.
        assert status(await raw(quick, tiny)) in (413, 0)
    # The thread that reads large bodies has memory of its own, which it keeps.
    assert quick.router.memory_info().rss - before < 8 << 20
    await serves(quick)


ODD = [
    "\x00",
    "\u2028",
    "\u202e",
    "\ufeff",
    "é",
    "漢",
    "🧪",
    "👩‍👩‍👧",
    "\ud7ff",
    "\U0010ffff",
    "\r\n",
    "\t",
    "a",
    " ",
]


async def test_t23_any_text_comes_back_as_it_went(
    sheet: Fortress, tokenizer: Tokenizer, thorough: bool
) -> None:
    """`echo` sends a prompt all the way round; what is not text at all is refused."""
    quick, chance = sheet, random.Random(23)
    cases = 10_000 if thorough else 300
    texts = ["".join(chance.choices(ODD, k=chance.randint(1, 30))) for _ in range(cases)]
    at_once = asyncio.Semaphore(16)

    async def echoed(http: httpx.AsyncClient, text: str) -> str:
        async with at_once:
            body = quick.completion(1, prompt=text, echo=True, stream=bool(len(text) % 2))
            response = await http.post("/v1/completions", json=body)
        assert response.status_code == 200, response.text
        if not body["stream"]:
            return str(response.json()["choices"][0]["text"])
        lines = [line[6:] for line in response.text.split("\n") if line.startswith("data: {")]
        return "".join(json.loads(line)["choices"][0]["text"] for line in lines)

    async with quick.client() as http:
        answers = await asyncio.gather(*(echoed(http, text) for text in texts))
    for text, answer in zip(texts, answers, strict=True):
        assert answer.startswith(text)
    invalid = [b'{"model":"x","prompt":"\xff\xfe"}', b'{"model":"x","prompt":"\\ud800"}', b"\x80", b'"\xc3"']
    for body in invalid:
        refusal = await raw(quick, with_key(quick, f"content-length: {len(body)}\r\nconnection: close", body))
        assert status(refusal) == 400, refusal


HUGE = [10**12, -1, -(10**30), 0.5, 1e308, "10", "", [], {}, True, "NaN"]
NUMBERS = {
    "max_tokens": [0, *HUGE],
    "n": [0, 17, *HUGE],
    "temperature": [-0.1, 2.1, *(value for value in HUGE if value != 0.5)],
    "top_p": [-0.1, 1.1, *(value for value in HUGE if value != 0.5)],
    "top_k": [-2, *(value for value in HUGE if value != -1)],  # -1 is vLLM's word for none
    "seed": [2**63, -(2**63) - 1, 0.5, "1", [], {}, True],
    "min_tokens": HUGE,
    "presence_penalty": [2.1, -2.1, "1", [], {}, True],
    "frequency_penalty": [2.1, -2.1, "1", [], {}, True],
    "repetition_penalty": [0, 10.1, -1, "1", [], {}],
}
BROKEN_NUMBERS = ["1e309", "NaN", "Infinity", "-Infinity", "01", "1.", ".5", "0x10", "1_000"]


async def test_t24_numbers_out_of_range_are_refused_by_name_and_reserve_nothing(
    sheet: Fortress, thorough: bool
) -> None:
    """Each in a completion; at full length in a chat as well, whole and streamed, once and twice."""
    quick = sheet
    plain = quick.completion(5)
    chat = {key: value for key, value in plain.items() if key != "prompt"}
    chat["messages"] = [{"role": "user", "content": "hi"}]
    asked = [("/v1/completions", plain)]
    if thorough:
        asked += [("/v1/chat/completions", chat), ("/v1/chat/completions", {**chat, "n": 2})]
        asked += [(path, {**body, "stream": True}) for path, body in asked[:2]]
    async with quick.client() as http:
        for path, body in asked:
            for name, values in NUMBERS.items():
                for value in values:
                    response = await http.post(path, json={**body, name: value})
                    assert response.status_code == 400, (name, value, response.text)
                    assert name in response.json()["error"]["message"]
                others = json.dumps({key: value for key, value in body.items() if key != name})[:-1]
                for text in BROKEN_NUMBERS:
                    content = f'{others},"{name}":{text}}}'
                    kind = {"content-type": "application/json"}
                    response = await http.post(path, content=content, headers=kind)
                    assert response.status_code == 400, (name, text, response.text)
    await serves(quick)


async def test_t26_lists_without_end_are_refused_before_they_are_worked_on(sheet: Fortress) -> None:
    quick = sheet
    chat = {"model": quick.stack.model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 2}
    recursive = {"$ref": "#"}
    bodies: list[dict[str, Any]] = [
        {**chat, "logit_bias": {str(number): 1 for number in range(60_000)}},
        {**chat, "stop": [f"s{number}" for number in range(10_000)]},
        {**chat, "tools": [{"type": "function", "function": {"name": f"f{n}"}} for n in range(5_000)]},
        {**chat, "messages": [{"role": "user", "content": "x"}] * 20_000},
        {**chat, "n": 1000},
        {**chat, "top_logprobs": 1000, "logprobs": True},
    ]
    async with quick.client() as http:
        for body in bodies:
            content, kind = json.dumps(body).encode(), {"content-type": "application/json"}
            used_s, reading_s = [], []
            for _ in range(3):  # of which the least is the body's own: the router has other work, too
                began_s = cpu_of(quick.router)
                response = await http.post("/v1/chat/completions", content=content, headers=kind)
                used_s.append(cpu_of(quick.router) - began_s)
                assert response.status_code == 400, response.text
                began_s = time.thread_time()
                msgspec.json.decode(content)
                reading_s.append(time.thread_time() - began_s)
            assert min(used_s) <= patience(0.05) + 2 * min(reading_s), list(body)
        schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": recursive}}
        await http.post("/v1/chat/completions", json={**chat, "response_format": schema})
    await serves(quick)


async def test_t27_fields_that_the_api_does_not_know_go_no_further(sheet: Fortress) -> None:
    quick = sheet
    names = [
        "triton_enable_empty_final_response",
        "triton_final_response",
        "tenant",
        "tier",
        "priority",
        "timeout",
        "inflight_logit_bias",
        "inflight_top_logprobs",
        "sequence_id",
        "parameters",
        "extra_body",
    ]
    async with quick.client() as http:
        for name in names:
            response = await http.post("/v1/completions", json=quick.completion(2, **{name: "x"}))
            assert response.status_code == 400, name
            assert name in response.json()["error"]["message"]
        smuggled = {
            "triton-grpc-protocol-x": "1",
            "x-tenant": "other",
            "grpc-timeout": "1n",
            "te": "trailers",
        }
        advice = {"request_id": "x", "client_metadata": {"tenant": "other"}}  # accepted, and ignored
        response = await http.post("/v1/completions", json=quick.completion(5, **advice), headers=smuggled)
    assert response.json()["id"] != "x"
    assert response.json()["choices"][0]["text"] == quick.text_of(5)


def smuggling(chance: random.Random) -> bytes:
    """One request with a second one hidden in its body, and an ambiguity about where it ends."""
    hidden = "GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
    te = chance.choice(
        ["chunked", "Chunked", "chunked, identity", "identity, chunked", "xchunked", " chunked"]
    )
    head = chance.choice(
        [
            f"content-length: {len(hidden)}\r\ntransfer-encoding: {te}",
            f"transfer-encoding: {te}\r\ntransfer-encoding: identity",
            f"transfer-encoding: identity\r\ntransfer-encoding: {te}\r\ncontent-length: 5",
            f"content-length: 5\r\ncontent-length: {len(hidden)}",
            f"content-length: 5, {len(hidden)}",
            f"content-length: +{len(hidden)}",
            f"content-length: -1\r\ncontent-length: {len(hidden)}",
            f"content-length : {len(hidden)}",
            f"content_length: 5\r\ncontent-length: {len(hidden)}",
            f"x-a: b\r\n content-length: {len(hidden)}",
            f"transfer-encoding:\x0b{te}\r\ncontent-length: 3",
            f"content-length: 0x{len(hidden):x}",
        ]
    )
    target = chance.choice(
        ["/v1/completions", "http://evil/v1/completions", "//evil", "*", "/v1/completions "]
    )
    version = chance.choice(["HTTP/1.1", "HTTP/1.1", "HTTP/1.2", "HTTP/9"])
    newline = chance.choice(["\r\n", "\r\n", "\n"])
    first = f"POST {target} {version}\r\nhost: x\r\ncontent-type: application/json\r\n"
    text = f"{first}{head}\r\n\r\n0\r\n\r\n{hidden}"
    return text.replace("\r\n", newline).encode("latin-1")


async def test_t28_ambiguous_requests_are_refused_and_the_connection_ends(
    sheet: Fortress, thorough: bool
) -> None:
    quick, chance = sheet, random.Random(28)
    at_once = asyncio.Semaphore(16)

    async def attack(data: bytes) -> tuple[bytes, bytes]:
        async with at_once:
            return data, await raw(quick, data, 2)

    attacks = [attack(smuggling(chance)) for _ in range(500 if thorough else 150)]
    for data, answer in await asyncio.gather(*attacks):
        assert len(re.findall(rb"HTTP/1\.1 \d{3} ", answer)) == 1, (data, answer)
        assert status(answer) in (400, 401, 404, 405, 415, 505), (data, answer)
        assert b'"object":"list"' not in answer
    await serves(quick)


async def test_t29_names_that_are_not_models_get_the_same_404_and_reach_no_model(
    sheet: Fortress, thorough: bool
) -> None:
    quick, chance = sheet, random.Random(29)
    odd = [
        "../",
        "..%2f",
        "%2e%2e/",
        ";id",
        "$(id)",
        "\x00",
        "|",
        "`",
        "ｓmollm2",
        "ensemble",
        "tensorrt_llm",
        " ",
        "a" * 300,
    ]
    names = [
        "".join(chance.choices([*odd, quick.stack.model, *string.punctuation], k=chance.randint(1, 4)))
        for _ in range(300 if thorough else 100)
    ]
    names = [name for name in {*names, *odd} if name != quick.stack.model]
    # Its steps are asked by the router's own probes too, the pipeline as a whole is not.
    before = quick.stack.gauge("nv_inference_request_success", model="ensemble")
    answers = set()
    async with quick.client() as http:
        for name in names:
            response = await http.post("/v1/completions", json=quick.completion(2, model=name))
            assert response.status_code == 404, (name, response.text)
            error = response.json()["error"]
            answers.add((error["type"], error["param"], error["code"]))
    assert answers == {("invalid_request_error", "model", "model_not_found")}
    assert quick.stack.gauge("nv_inference_request_success", model="ensemble") == before


INJECTIONS = [
    "\n\ndata: [DONE]\n\n",
    "event: error\n",
    "\r\ndata: {}\r\n\r\n",
    "\u2028data: x\u2029",
    ": x\n",
    "id: 1\n",
]


async def test_t30_text_that_looks_like_events_is_text(sheet: Fortress, thorough: bool) -> None:
    quick, chance = sheet, random.Random(30)
    async with quick.client() as http:
        for _ in range(200 if thorough else 40):
            text = "".join(chance.choices([*INJECTIONS, "a", " "], k=6))
            body = quick.completion(3, prompt=text, echo=True, stream=True)
            response = await http.post("/v1/completions", json=body)
            *events, last = response.text.removesuffix("\n\n").split("\n\n")
            assert last == "data: [DONE]"
            assert all(event.startswith("data: {") and "\n" not in event for event in events)
            pieces = [json.loads(event[6:])["choices"][0]["text"] for event in events]
            assert "".join(pieces).startswith(text)


async def test_no_body_up_to_the_limit_keeps_the_router_from_answering_others(sheet: Fortress) -> None:
    quick, before = sheet, await sheet.stalls()
    path = f"/v2/models/{quick.stack.model}"
    numbers, words, lists = (f"[{','.join([each] * 240_000)}]" for each in ("1.5", '"a"', "[]"))
    text = '{"name":"text_input","datatype":"BYTES","shape":[1,1],"data":["a"]}'
    tensor = f'{{"name":"embedding_bias_weights","datatype":"FP32","shape":[1,240000],"data":{numbers}}}'
    tool = f'{{"type":"function","function":{{"name":"f","parameters":{{"a":{lists}}}}}}}'
    bodies = [
        (f"{path}/infer", f'{{"inputs":[{text},{tensor}]}}'),
        (f"{path}/generate", f'{{"text_input":"a","max_tokens":1,"stop_words":{words}}}'),
        ("/v1/chat/completions", f'{{"model":"m","messages":[],"tools":[{tool}]}}'),
    ]
    kind = {"content-type": "application/json"}
    async with quick.client() as http:
        asked = (http.post(path, content=body, headers=kind) for path, body in bodies * 4)
        flood = raw(quick, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n" * 7_000, 1)
        answers, _ = await asyncio.gather(asyncio.gather(*asked), flood)
    assert {each.status_code for each in answers} == {400}
    assert await quick.stalls() == before
    await serves(quick)
