from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.calls import chat_messages, chat_prompt, templated_calls
from router.chat.images import ImageLimits, Images, asked_images, image_tokens
from router.core.generation import unmarked
from router.core.images import Image
from router.core.messages import Message, Part, image_part
from router.core.record import Record
from router.core.tenant import LOCAL_CALLER
from router.openai.chat import decode_chat
from router.request.aside import Aside
from router.request.text import need_of
from router.routing.generation import digest
from router.routing.models import ServedModel
from tests.fakes.files import FakeFiles
from tests.fakes.pipeline import FakePipeline
from tests.router.chat.pictures import IMAGE_TOKENS, SEEING, bomb, data_url, picture, seer

RED, BLUE = picture(colour="red"), picture(colour="blue")
FILES = FakeFiles({("local", "file-1"): ("red.png", RED)})
BLIND = ServedModel("reader", FakePipeline(), SEEING)


def shown(*parts: Part, role: str = "user") -> list[Message]:
    return [Message("system", "Be brief."), Message(role, [*parts, Part("text", "What is it?")])]


async def read(
    *parts: Part, limits: ImageLimits | None = None, model: ServedModel | None = None
) -> tuple[Image, ...]:
    images = Images(Aside(), FILES, limits=limits)
    return await images.read(shown(*parts), model or seer(), Record("", "id", LOCAL_CALLER))


async def refusal(*parts: Part, **more: Any) -> InflightError:
    with pytest.raises(InflightError) as caught:
        await read(*parts, **more)
    assert caught.value.param in ("messages", "file_id")
    return caught.value


@pytest.mark.parametrize(
    ("kind", "media_type"),
    [("PNG", "image/png"), ("JPEG", "image/jpeg"), ("WEBP", "image/webp"), ("GIF", "image/gif")],
)
async def test_an_image_in_a_data_url_is_known_by_its_own_header(kind: str, media_type: str) -> None:
    data = picture(kind)
    (found,) = await read(image_part(data_url(data, "image/bmp")))
    assert found == Image(data, hashlib.sha256(data).hexdigest(), media_type, 8, 6)


async def test_an_uploaded_image_and_one_in_a_url_come_in_their_order() -> None:
    found = await read(image_part(file_id="file-1"), image_part(data_url(BLUE)))
    assert [each.data for each in found] == [RED, BLUE]


@pytest.mark.parametrize(
    ("part", "limits", "said"),
    [
        (image_part(data_url(RED)), ImageLimits(max_bytes=20), "image 1: is larger than 20 bytes"),
        (
            image_part(file_id="file-1"),
            ImageLimits(max_bytes=20),
            f"has {len(RED)} bytes; allowed: at most 20",
        ),
        (image_part(data_url(RED)), ImageLimits(max_pixels=47), "8x6 pixels; allowed: at most 47 in total"),
        (image_part(data_url(bomb(60_000, 60_000))), None, "60000x60000 pixels; allowed: at most 16777216"),
        (image_part(data_url(b"hello")), None, "is not a readable image; supported: PNG, JPEG, WebP and GIF"),
        (image_part(data_url(RED[:20])), None, "is not a readable image"),
        (image_part(data_url(picture("BMP"))), None, "is not a readable image"),
        (image_part("data:image/png,hello"), None, "expected data:TYPE;base64,DATA"),
        (image_part("data:image/png;base64,!!!"), None, "the data is not base64"),
        (image_part("ftp://host/a.png"), None, "expected a url that begins with data: or https://"),
        (image_part(), None, "give either a url or a file_id"),
        (image_part(data_url(RED), "file-1"), None, "give either a url or a file_id"),
    ],
)
async def test_what_is_no_image_or_too_large_is_refused_and_named(
    part: Part, limits: ImageLimits | None, said: str
) -> None:
    error = await refusal(part, limits=limits)
    assert error.kind is ErrorKind.INVALID_REQUEST
    assert said in error.message


async def test_the_second_image_is_named_when_it_is_the_wrong_one() -> None:
    error = await refusal(image_part(data_url(RED)), image_part(data_url(b"x")))
    assert error.message.startswith("image 2: ")


async def test_files_of_others_are_not_found() -> None:
    assert (await refusal(image_part(file_id="file-2"))).kind is ErrorKind.NOT_FOUND


async def test_images_of_other_hosts_are_refused_unless_the_operator_names_hosts() -> None:
    error = await refusal(image_part("https://example.org/a.png"))
    assert error.kind is ErrorKind.UNSUPPORTED
    assert "not fetched from other hosts" in error.message


async def test_a_model_that_reads_text_refuses_images_by_its_name() -> None:
    error = await refusal(image_part(data_url(RED)), model=BLIND)
    assert error.kind is ErrorKind.UNSUPPORTED
    assert error.message == "image 1: the model 'reader' reads text, not images"


async def test_more_images_than_the_model_takes_are_refused_before_any_is_read() -> None:
    error = await refusal(*[image_part("never read")] * 3)
    assert error.message == "3 images: the model 'seer' takes at most 2 in one request"


@pytest.mark.parametrize("role", ["assistant", "system", "tool"])
def test_images_are_taken_from_users_alone(role: str) -> None:
    with pytest.raises(InflightError, match=f"is in a message of the role {role}; allowed: user"):
        asked_images(shown(image_part("x"), role=role), seer())


def test_a_chat_without_images_asks_for_none_of_any_model() -> None:
    assert asked_images([Message("user", "hi"), Message("user", [Part("text", "x")])], BLIND) == []


def chat(*content: object) -> Any:
    body = {"model": "seer", "messages": [{"role": "user", "content": content}]}
    return decode_chat(json.dumps(body).encode())


IMAGE_URL = {"type": "image_url", "image_url": {"url": data_url(RED), "detail": "low"}}
TEXT = {"type": "text", "text": "What is <image>?"}


def test_the_template_has_a_place_for_each_image_and_none_for_what_only_looks_like_one() -> None:
    body = chat(IMAGE_URL, TEXT, {"type": "input_image", "image_url": data_url(BLUE)})
    prompt, marked = unmarked(chat_prompt(body, SEEING))
    assert prompt == "<user><image>What is <image>?<image></user><assistant>"
    assert marked is not None
    assert marked.count("<image>") == 2


def test_content_without_images_stays_one_text() -> None:
    assert chat_messages(chat(TEXT, TEXT))[0]["content"] == "What is <image>?\nWhat is <image>?"


async def test_calls_have_the_images_and_what_they_may_come_to() -> None:
    found = await read(image_part(data_url(RED)), image_part(data_url(BLUE)))
    record = Record("", "id", LOCAL_CALLER)
    (call,) = templated_calls(chat(IMAGE_URL, IMAGE_URL), record, seer(), SEEING, found)
    assert call.images == found
    assert call.image_tokens == 2 * IMAGE_TOKENS
    alone = templated_calls(chat(TEXT), record, seer(), SEEING)[0]
    assert need_of([call], 8192).prompt_tokens >= 2 * IMAGE_TOKENS > need_of([alone], 8192).prompt_tokens
    assert image_tokens(shown(image_part("x")), seer()) == IMAGE_TOKENS


async def test_requests_with_different_images_are_never_the_same() -> None:
    record = Record("", "id", LOCAL_CALLER)
    red, blue = [await read(image_part(data_url(each))) for each in (RED, BLUE)]
    calls = [templated_calls(chat(IMAGE_URL), record, seer(), SEEING, each)[0] for each in (red, red, blue)]
    assert digest(calls[0]) == digest(calls[1]) != digest(calls[2])


async def test_what_is_logged_has_hash_and_size_of_an_image_and_no_bytes_of_it() -> None:
    found = await read(image_part(data_url(RED)))
    (call,) = templated_calls(chat(IMAGE_URL), Record("", "id", LOCAL_CALLER), seer(), SEEING, found)
    described = f"[image/png, 8x6, {len(RED)} bytes, sha256 {hashlib.sha256(RED).hexdigest()}]"
    assert call.logged_texts == (call.prompt, described)
