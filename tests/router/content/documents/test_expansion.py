"""Files in chat messages."""

from __future__ import annotations

from base64 import b64encode

import msgspec
import pytest

from python_backend.wire.errors import InflightError
from router.content.documents.documents import Documents, expand
from router.core.messages import Message
from router.core.tenant import LOCAL_CALLER
from tests.fakes.files import FakeFiles

DATA = f"data:text/plain;base64,{b64encode(b'the text').decode()}"


def messages(*content: object) -> list[Message]:
    given = [{"role": "system", "content": "be brief"}, {"role": "user", "content": list(content)}]
    return msgspec.convert(given, list[Message])


async def test_a_file_becomes_a_part_with_its_text() -> None:
    asked = messages(
        {"type": "text", "text": "what is this?"},
        {"type": "file", "file": {"filename": "a.txt", "file_data": DATA}},
    )
    expanded = await expand(asked, LOCAL_CALLER, Documents())
    assert expanded[0] is asked[0]
    content = expanded[1].content
    assert isinstance(content, list)
    assert [part.text for part in content] == ["what is this?", '<file name="a.txt">\nthe text\n</file>']


async def test_messages_without_files_are_left_alone() -> None:
    asked = messages({"type": "text", "text": "hi"})
    assert await expand(asked, LOCAL_CALLER, Documents()) is asked


async def test_a_document_error_names_its_message_and_part() -> None:
    asked = messages({"type": "file", "file": {"file_id": "file-1"}}, {"type": "file"})
    documents = Documents(FakeFiles({("local", "file-1"): ("a.txt", b"hello")}))
    with pytest.raises(InflightError) as caught:
        await expand(asked, LOCAL_CALLER, documents)
    assert caught.value.param == "messages[1].content[1].file"
