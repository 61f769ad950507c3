"""What is honoured, what is advice, and what is refused by its name."""

from __future__ import annotations

from typing import Any

import httpx

from tests.router.running import EMBEDDER, MODEL, RunningRouter

QUESTION = {"role": "user", "content": "hi"}
ADVICE = (
    "num_ctx",
    "num_thread",
    "num_gpu",
    "num_batch",
    "num_keep",
    "use_mmap",
    "use_mlock",
    "numa",
    "low_vram",
)
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("chat", {"messages": [{**QUESTION, "images": ["aGk="]}]}, "reads text, not images"),
    ("chat", {"messages": [{"role": "developer", "content": "x"}]}, "messages[0].role"),
    (
        "chat",
        {"messages": [{**QUESTION, "tool_calls": [{"function": {"name": "f"}}]}]},
        "only allowed with the role assistant",
    ),
    ("chat", {"think": "hard"}, "think"),
    ("chat", {"logprobs": True}, "logprobs"),
    ("chat", {"format": "yaml"}, "format"),
    ("chat", {"surprise": 1}, "surprise"),
    ("chat", {"options": {"mirostat": 1}}, "options.mirostat"),
    ("chat", {"options": {"min_p": 2}}, "options.min_p"),
    ("chat", {"options": {"surprise": 1}}, "options.surprise"),
    ("generate", {"prompt": "hi", "suffix": "x"}, "suffix"),
    ("generate", {"prompt": "hi", "template": "x"}, "template"),
    ("generate", {"prompt": "hi", "context": [1]}, "context"),
    ("generate", {"prompt": "hi", "images": ["aGk="]}, "reads text, not images"),
    ("generate", {"prompt": "hi", "images": ["aGk="], "raw": True}, "images: not allowed with a raw prompt"),
    ("embed", {"model": EMBEDDER}, "input"),
    ("embed", {"model": EMBEDDER, "input": "x", "truncate": False}, "truncate"),
    ("embed", {"model": MODEL, "input": "x"}, "makes no embeddings"),
    ("chat", {"model": EMBEDDER}, "makes embeddings"),
    ("show", {"model": ""}, "does not exist"),
]


async def ask(router: RunningRouter, what: str, **fields: Any) -> httpx.Response:
    messages = {"messages": [QUESTION]} if what == "chat" else {}
    return await router.http.post(f"/api/{what}", json={"model": MODEL, **messages, **fields})


async def test_what_is_wrong_or_not_done_here_is_named(router: RunningRouter) -> None:
    for what, fields, named in REFUSED:
        response = await ask(router, what, **fields)
        assert response.status_code in (400, 404), (fields, response.text)
        assert named in response.json()["error"]
    assert router.pipeline.calls == []


async def test_advice_and_neutral_values_have_no_effect(router: RunningRouter) -> None:
    options = {**dict.fromkeys(ADVICE, 1), "mirostat": 0, "mirostat_tau": 5.0, "min_p": 0.0, "tfs_z": 1}
    neutral = {"keep_alive": -1, "think": False, "truncate": True, "shift": True, "format": ""}
    response = await ask(router, "chat", options=options, stream=False, **neutral)
    assert response.json()["message"]["content"] == "Hello world"


async def test_a_body_of_curl_is_read_as_json_whatever_its_type_says(router: RunningRouter) -> None:
    form = {"content-type": "application/x-www-form-urlencoded", "user-agent": "curl/8.5.0"}
    body = b'{"model": "tiny", "prompt": "hi"}'
    response = await router.http.post("/api/generate", content=body, headers=form)
    assert response.headers["content-type"] == "application/x-ndjson"
    assert response.text.count("\n") == 3


async def test_the_version_is_the_servers_own(router: RunningRouter) -> None:
    assert set((await router.http.get("/api/version")).json()) == {"version"}
    assert (await router.http.get("/api/nothing")).json() == {"error": "there is nothing at /api/nothing"}


async def test_a_large_chat_is_answered_like_any_other(router: RunningRouter) -> None:
    response = await ask(router, "chat", messages=[{**QUESTION, "content": "hi " * 20_000}], stream=False)
    assert response.json()["message"]["content"] == "Hello world"
