"""Items: read from requests, shown by the API, and told to a model as messages."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

import msgspec
import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.content.conversations.items import GivenItem, Item, as_messages, check_results, read_items
from router.content.documents.documents import Documents
from router.core.tenant import LOCAL_CALLER
from tests.fakes.files import FakeFiles

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": '{"at": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "a tree"}


async def read(*given: Any) -> list[Item]:
    documents = Documents(FakeFiles({("local", "file-1"): ("notes.txt", b"from a file")}))
    return await read_items(msgspec.convert(list(given), list[GivenItem]), "input", LOCAL_CALLER, documents)


async def refusal(given: Any) -> InflightError:
    with pytest.raises(InflightError) as caught:
        await read(given)
    return caught.value


async def test_a_string_is_a_message_of_the_user() -> None:
    [item] = await read_items("hello", "input", LOCAL_CALLER, Documents())
    assert (item.role, item.text) == ("user", "hello")
    assert item.shown["content"] == [{"type": "input_text", "text": "hello"}]


async def test_messages_calls_and_results_are_shown_as_they_came_with_an_id() -> None:
    items = await read({"role": "developer", "content": "be brief"}, CALL, RESULT)
    assert [item.shown["type"] for item in items] == ["message", "function_call", "function_call_output"]
    assert [item.id.partition("_")[0] for item in items] == ["msg", "fc", "fco"]
    assert items[0].shown["role"] == "developer"
    assert items[1].shown["arguments"] == '{"at": 1}'
    assert items[2].shown["output"] == "a tree"
    assert all(item.shown["status"] == "completed" for item in items)


async def test_ids_are_never_taken_from_a_request() -> None:
    [item] = await read({"id": "msg_mine", "role": "user", "content": "hi"})
    assert item.id != "msg_mine"


async def test_a_file_is_read_and_its_data_is_not_kept() -> None:
    data = b64encode(b"inline").decode()
    [item] = await read(
        {
            "role": "user",
            "content": [
                {"type": "input_text", "text": "compare"},
                {"type": "input_file", "file_id": "file-1"},
                {"type": "input_file", "filename": "b.txt", "file_data": f"data:text/plain;base64,{data}"},
            ],
        }
    )
    assert item.text == (
        'compare\n<file name="notes.txt">\nfrom a file\n</file>\n<file name="b.txt">\ninline\n</file>'
    )
    assert item.shown["content"][1:] == [
        {"type": "input_file", "file_id": "file-1", "filename": "notes.txt"},
        {"type": "input_file", "file_id": None, "filename": "b.txt"},
    ]
    assert data not in msgspec.json.encode(item).decode()


@pytest.mark.parametrize(
    ("given", "kind", "param", "said"),
    [
        ({"type": "item_reference", "id": "x"}, ErrorKind.UNSUPPORTED, "input[0].type", "item_reference"),
        ({"role": "critic", "content": "x"}, ErrorKind.INVALID_REQUEST, "input[0].role", "expected one of"),
        ({"role": "user"}, ErrorKind.INVALID_REQUEST, "input[0].content", "a string or a list of parts"),
        (
            {"role": "user", "content": [{"type": "input_image"}]},
            ErrorKind.INVALID_REQUEST,
            "input[0].content[0]",
            "give either image_url or file_id",
        ),
        (
            {"role": "assistant", "content": [{"type": "input_image", "image_url": "x"}]},
            ErrorKind.UNSUPPORTED,
            "input[0].content[0].type",
            "input_image is not supported here; allowed: input_text, output_text, input_file",
        ),
        (
            {"role": "user", "content": [{"type": "input_audio"}]},
            ErrorKind.UNSUPPORTED,
            "input[0].content[0].type",
            "input_audio is not supported",
        ),
        (
            {"role": "user", "content": [{"type": "input_file", "file_url": "http://x"}]},
            ErrorKind.UNSUPPORTED,
            "input[0].content[0].file_url",
            "files are not fetched",
        ),
        ({**CALL, "arguments": "{"}, ErrorKind.INVALID_REQUEST, "input[0].arguments", "expected JSON"),
        ({"type": "function_call"}, ErrorKind.INVALID_REQUEST, "input[0]", "call_id, name and arguments"),
        (
            {"type": "function_call_output", "output": "x"},
            ErrorKind.INVALID_REQUEST,
            "input[0].call_id",
            "call_id",
        ),
        (
            {"role": "user", "content": [{"type": "input_text"}]},
            ErrorKind.INVALID_REQUEST,
            "input[0].content[0].text",
            "expected a string",
        ),
    ],
)
async def test_a_bad_item_is_refused_by_its_position(
    given: Any, kind: ErrorKind, param: str, said: str
) -> None:
    error = await refusal(given)
    assert (error.kind, error.param) == (kind, param)
    assert said in error.message


async def test_a_result_needs_its_call() -> None:
    call, result = await read(CALL, RESULT)
    check_results([call], [result], "input")
    check_results([], [call, result], "input")
    with pytest.raises(InflightError) as caught:
        check_results([call], [call, msgspec.structs.replace(result, answers="c2")], "input")
    assert caught.value.param == "input[1].call_id"


async def test_the_files_of_a_request_are_counted() -> None:
    file = {"type": "input_file", "file_id": "file-1"}
    error = await refusal({"role": "user", "content": [file] * 21})
    assert error.message == "input: 21 files; allowed: at most 20 in one request"


async def test_an_assistants_text_and_calls_become_one_message() -> None:
    items = await read(
        {"role": "user", "content": "look"}, {"role": "assistant", "content": "I look."}, CALL, CALL, RESULT
    )
    messages = as_messages(items, None)
    assert [message.role for message in messages] == ["user", "assistant", "tool"]
    assert messages[1].content == "I look."
    assert [call.name for call in messages[1].tool_calls or ()] == ["look", "look"]
    assert messages[2].tool_call_id == "c1"


async def test_instructions_and_the_first_system_messages_are_one() -> None:
    items = await read(
        {"role": "system", "content": "A"},
        {"role": "developer", "content": "B"},
        {"role": "user", "content": "C"},
        {"role": "system", "content": "D"},
    )
    with_them = as_messages(items, "I")
    assert [(message.role, message.content) for message in with_them] == [
        ("system", "I\n\nA\n\nB"),
        ("user", "C"),
        ("system", "D"),
    ]
    assert as_messages(items, None)[0].content == "A\n\nB"


async def test_a_stored_item_is_read_back_as_it_was() -> None:
    for item in await read({"role": "user", "content": "hi"}, CALL, RESULT):
        assert msgspec.json.decode(msgspec.json.encode(item), type=Item) == item


async def test_an_image_is_kept_for_later_turns_and_its_data_is_not_shown() -> None:
    url = "data:image/png;base64,aGk="
    image = {"type": "input_image", "image_url": url, "detail": "high"}
    (item,) = await read({"role": "user", "content": [image, {"type": "input_text", "text": "What is it?"}]})
    assert item.shown["content"][0] == {"type": "input_image", "file_id": None, "detail": "high"}
    assert (item.text, item.images) == ("What is it?", 1)
    (kept,) = msgspec.json.decode(msgspec.json.encode([item]), type=list[Item])
    (message,) = as_messages([kept], None)
    assert [each.url for each in message.images] == [url]
