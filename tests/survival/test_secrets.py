"""What callers would rather not find again: T32, against everything that a whole stack writes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from urllib.parse import quote

import httpx

from tests.pace import patience
from tests.router.telemetry.planted import heart_of, planted
from tests.survival.conftest import Fortress

SECRETS = 200
Plant = Callable[[Fortress, httpx.AsyncClient, str], Awaitable[httpx.Response]]
JSON = {"content-type": "application/json"}


async def in_a_prompt(quick: Fortress, http: httpx.AsyncClient, secret: str) -> httpx.Response:
    return await http.post("/v1/completions", json=quick.completion(2, prompt=secret, echo=True))


async def in_a_chat(quick: Fortress, http: httpx.AsyncClient, secret: str) -> httpx.Response:
    messages = [{"role": "system", "content": secret}, {"role": "user", "content": secret}]
    body = {"model": quick.stack.model, "messages": messages, "max_tokens": 2, "user": secret}
    return await http.post("/v1/chat/completions", json=body)


async def in_a_broken_body(quick: Fortress, http: httpx.AsyncClient, secret: str) -> httpx.Response:
    return await http.post("/v1/completions", content=f'{{"prompt": "{secret}'.encode(), headers=JSON)


async def as_a_field(quick: Fortress, http: httpx.AsyncClient, secret: str) -> httpx.Response:
    return await http.post("/v1/completions", json=quick.completion(2, **{secret: secret}))


async def as_a_wrong_value(quick: Fortress, http: httpx.AsyncClient, secret: str) -> httpx.Response:
    return await http.post("/v1/completions", json=quick.completion(2, temperature=secret, stop=[secret]))


async def as_a_key(quick: Fortress, http: httpx.AsyncClient, secret: str) -> httpx.Response:
    shown = secret.replace("\n", " ")
    headers = {"authorization": f"Bearer {shown}", "x-note": shown, "cookie": shown}
    return await http.post("/v1/completions", json=quick.completion(2), headers=headers)


async def as_a_model(quick: Fortress, http: httpx.AsyncClient, secret: str) -> httpx.Response:
    return await http.post("/v1/completions", json=quick.completion(2, model=secret))


async def in_a_path(quick: Fortress, http: httpx.AsyncClient, secret: str) -> httpx.Response:
    named = quote(secret, safe="")
    await http.get(f"/v2/models/{named}/ready")
    await http.get(f"/{named}")
    return await http.get(f"/v1/files/{named}", params={"after": secret})


async def in_a_file(quick: Fortress, http: httpx.AsyncClient, secret: str) -> httpx.Response:
    files = {"file": (f"{secret}.jsonl", f"{secret}\n".encode())}
    return await http.post("/v1/files", files=files, data={"purpose": "user_data"})


async def in_a_conversation(quick: Fortress, http: httpx.AsyncClient, secret: str) -> httpx.Response:
    made = await http.post("/v1/conversations", json={"metadata": {"title": secret}})
    body = {"model": quick.stack.model, "input": secret, "instructions": secret, "max_output_tokens": 16}
    return await http.post("/v1/responses", json={**body, "conversation": made.json()["id"]})


async def in_a_tensor(quick: Fortress, http: httpx.AsyncClient, secret: str) -> httpx.Response:
    body = {"text_input": secret, "max_tokens": 2, secret: 1}
    return await http.post(f"/v2/models/{quick.stack.model}/generate", json=body)


PLANTS: list[Plant] = [
    in_a_prompt,
    in_a_chat,
    in_a_broken_body,
    as_a_field,
    as_a_wrong_value,
    as_a_key,
    as_a_model,
    in_a_path,
    in_a_file,
    in_a_conversation,
    in_a_tensor,
]


def written(quick: Fortress) -> dict[str, str]:
    """All that the stack has said: on its terminal, in its logs and in its metrics."""
    output = quick.stack.output()
    files = [path for path in quick.stack.logs.iterdir() if path.is_file()]
    texts = {path.name: path.read_text(errors="replace") for path in files}
    for name, url in (
        ("Triton's metrics", quick.stack.triton_metrics_url),
        ("metrics", f"{quick.stack.url}/metrics"),
    ):
        texts[name] = httpx.get(url, trust_env=False, verify=False, timeout=patience(30)).text
    return {**texts, "output": output}


async def test_t32_no_secret_is_found_again_in_what_the_stack_writes(sheet: Fortress) -> None:
    secrets = planted(SECRETS)
    async with sheet.client() as http:
        planting = (
            PLANTS[number % len(PLANTS)](sheet, http, secret) for number, secret in enumerate(secrets)
        )
        answers = await asyncio.gather(*planting)
    assert all(each.status_code < 500 for each in answers)
    assert sum(each.status_code == 200 for each in answers) >= 4 * (SECRETS // len(PLANTS))
    texts = await asyncio.to_thread(written, sheet)
    assert {"router.log", "triton.log"} <= set(texts)
    for secret in secrets:
        found = [name for name, text in texts.items() if heart_of(secret) in text]
        assert not found, (secret, found)
