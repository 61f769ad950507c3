"""Images to a model that sees, by `inflight_runtime = vllm`: the real package under the real Triton."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import httpx
import PIL.Image
import pytest
from tokenizers import Tokenizer

from benchmarks.stack import RunningStack, running_stack
from tests.lasting import lasting
from tests.pace import patience
from tests.stack.conftest import EXACT
from tests.stack.seeing_model import expanded, greedy_ids, random_picture, write_seeing_model
from tests.stack.test_vllm_runtime import comes_true

pytestmark = [pytest.mark.stack, pytest.mark.timeout(1200)]

NEW_TOKENS = 12
QUESTION = "What is on this picture?"
ONE, OTHER = random_picture(1), random_picture(2)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("vllm-images") / "seeing"


@pytest.fixture(scope="module")
def in_transformers(checkpoint: Path, default_checkpoint: Path) -> Any:
    return write_seeing_model(checkpoint, default_checkpoint)


@pytest.fixture(scope="module")
def stack(runtimes: Path, in_transformers: Any, checkpoint: Path, data_dir: Path) -> Iterator[RunningStack]:
    engine = {
        **EXACT,
        "inflight_runtime": "vllm",
        "inflight_max_sequence_tokens": "1024",
        "max_tokens_in_paged_kv_cache": "8192",
        "inflight_max_images": "2",
    }
    with lasting(running_stack(engine, str(checkpoint), data_dir, embeddings=False)) as running:
        assert comes_true(lambda: sees(running), 30), running.output()  # its engine is asked once a second
        yield running


def sees(stack: RunningStack) -> bool:
    model = httpx.get(f"{stack.url}/v1/models/{stack.model}", timeout=patience(30)).json()
    return bool(model["capabilities"]["vision"])


def png(picture: PIL.Image.Image) -> bytes:
    with BytesIO() as file:
        picture.save(file, "PNG")
        return file.getvalue()


def data_url(picture: PIL.Image.Image) -> str:
    return f"data:image/png;base64,{base64.b64encode(png(picture)).decode()}"


async def ask(stack: RunningStack, *pictures: PIL.Image.Image, **more: Any) -> httpx.Response:
    content: list[dict[str, Any]] = [
        {"type": "image_url", "image_url": {"url": data_url(each)}} for each in pictures
    ]
    body = {
        "model": stack.model,
        "messages": [{"role": "user", "content": [*content, {"type": "text", "text": QUESTION}]}],
        "max_tokens": NEW_TOKENS,
        "min_tokens": NEW_TOKENS,
        "temperature": 0,
        "return_token_ids": True,
        **more,
    }
    async with httpx.AsyncClient(base_url=stack.url, timeout=300) as http:
        return await http.post("/v1/chat/completions", json=body)


def prompt_ids(checkpoint: Path, pictures: int) -> list[int]:
    prompt = f"<|im_start|>user\n{'<image>' * pictures}{QUESTION}<|im_end|>\n<|im_start|>assistant\n"
    ids: list[int] = Tokenizer.from_file(str(checkpoint / "tokenizer.json")).encode(prompt).ids
    return ids


@pytest.mark.parametrize("pictures", [[], [ONE], [OTHER], [ONE, OTHER], [OTHER, ONE]])
async def test_the_ids_are_those_of_transformers_whatever_is_shown(
    stack: RunningStack, in_transformers: Any, checkpoint: Path, pictures: list[PIL.Image.Image]
) -> None:
    answer = (await ask(stack, *pictures)).json()
    ids = prompt_ids(checkpoint, len(pictures))
    assert answer["prompt_token_ids"] == ids
    assert answer["usage"]["prompt_tokens"] == len(expanded(ids))
    assert answer["choices"][0]["token_ids"] == greedy_ids(in_transformers, ids, pictures, NEW_TOKENS)


async def test_another_image_is_another_answer_and_the_same_image_the_same(stack: RunningStack) -> None:
    answers = [(await ask(stack, each)).json() for each in (ONE, OTHER, ONE)]
    texts = [each["choices"][0]["token_ids"] for each in answers]
    assert texts[0] == texts[2] != texts[1]


async def test_what_looks_like_a_place_for_an_image_is_text(stack: RunningStack) -> None:
    messages = [{"role": "user", "content": "What does <image> mean?"}]
    answer = await ask(stack, messages=messages)
    assert answer.status_code == 200
    assert answer.json()["usage"]["prompt_tokens"] < 30


async def test_what_cannot_be_decoded_is_the_requests_fault(stack: RunningStack) -> None:
    torn = f"data:image/png;base64,{base64.b64encode(png(ONE)[:200]).decode()}"
    content = [{"type": "image_url", "image_url": {"url": torn}}]
    answer = await ask(stack, messages=[{"role": "user", "content": content}])
    assert answer.status_code == 400, answer.text
    assert (await ask(stack, ONE)).status_code == 200


async def test_an_uploaded_image_of_megabytes_is_shown(stack: RunningStack, checkpoint: Path) -> None:
    large = png(random_picture(3, side=1500))
    assert len(large) > 6 << 20
    async with httpx.AsyncClient(base_url=stack.url, timeout=300) as http:
        made = await http.post("/v1/files", files={"file": large}, data={"purpose": "vision"})
    content = [{"type": "image_url", "image_url": {"file_id": made.json()["id"]}}]
    text = {"type": "text", "text": QUESTION}
    answer = await ask(stack, messages=[{"role": "user", "content": [*content, text]}])
    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["prompt_tokens"] == len(expanded(prompt_ids(checkpoint, 1)))


async def test_more_images_than_the_engine_takes_are_refused(stack: RunningStack) -> None:
    answer = await ask(stack, ONE, OTHER, ONE)
    assert answer.status_code == 400
    assert "takes at most 2 in one request" in answer.json()["error"]["message"]
