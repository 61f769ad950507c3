"""Files become text, or are refused with the reason."""

from __future__ import annotations

import asyncio
import csv
import io
import os
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from python_backend.host.priorities import NICENESS
from python_backend.sharing.processor_share import ProcessorShare
from python_backend.wire.errors import ErrorKind, InflightError
from router.content.documents import document_program
from router.content.documents.document_program import PDF, TABLE, Unreadable, read_plain, render_table
from router.content.documents.documents import Documents
from router.content.documents.readers import DocumentLimits, DocumentReader
from router.core.messages import FileReference
from router.core.tenant import LOCAL_CALLER
from tests.fakes.files import FakeFiles
from tests.router.content.documents.pdf_files import encrypted_pdf, pdf, pdf_bomb

WHERE = "input[0].content[1]"


def inline(data: bytes, name: str = "a.txt", kind: str = "text/plain") -> FileReference:
    return FileReference(file_data=f"data:{kind};base64,{b64encode(data).decode()}", filename=name)


async def read(data: bytes, name: str = "a.txt", kind: str = "text/plain", **limits: float) -> str:
    documents = Documents(limits=DocumentLimits(**limits))  # type: ignore[arg-type]  # whole ones are whole
    try:
        return (await documents.read(inline(data, name, kind), LOCAL_CALLER, WHERE)).text
    finally:
        await documents.close()


@pytest.fixture
async def reader() -> AsyncIterator[DocumentReader]:
    opened = DocumentReader("PDFs to be read", DocumentLimits(), waiting_each=2)
    yield opened
    await opened.close()


async def refusal(data: bytes, name: str = "a.txt", kind: str = "text/plain", **limits: float) -> str:
    with pytest.raises(InflightError) as caught:
        await read(data, name, kind, **limits)
    assert caught.value.kind is ErrorKind.INVALID_REQUEST
    assert caught.value.param == WHERE
    assert name in caught.value.message
    return caught.value.message


async def test_text_is_taken_as_it_is() -> None:
    assert await read("# Grüße\n".encode(), "a.md", "text/markdown") == "# Grüße\n"
    assert await read("\ufeffwith a mark".encode()) == "with a mark"
    assert await read("in sixteen bits".encode("utf-16")) == "in sixteen bits"


async def test_a_rendered_document_carries_its_cleaned_file_name() -> None:
    document = await Documents().read(inline(b"hello", 'my "notes"\n.txt'), LOCAL_CALLER, WHERE)
    assert document.rendered() == '<file name="my _notes__.txt">\nhello\n</file>'


async def test_a_csv_becomes_a_readable_table() -> None:
    text = await read(b'name,says\nAnn,"a, b|c\nd"\n', "people.csv", "application/octet-stream")
    assert text == "| name | says |\n| --- | --- |\n| Ann | a, b\\|c d |"


@pytest.mark.parametrize("delimiter", [",", ";", "\t", "|"])
def test_the_delimiter_of_a_csv_is_detected(delimiter: str) -> None:
    table = delimiter.join(["a", "b", "c"]) + "\n" + delimiter.join(["1", "2", "3"])
    assert render_table(table) == "| a | b | c |\n| --- | --- | --- |\n| 1 | 2 | 3 |"


def test_characters_in_quotes_are_not_taken_for_delimiters() -> None:
    assert render_table('"a;b;c;d",e\n1,2') == "| a;b;c;d | e |\n| --- | --- |\n| 1 | 2 |"
    assert render_table('"one;\ntwo;",e\n1,2') == "| one; two; | e |\n| --- | --- |\n| 1 | 2 |"


@settings(deadline=None)
@example([["\t"], ["", "\r"]])
@given(st.lists(st.lists(st.text(), min_size=1), min_size=1))
def test_each_row_of_a_table_is_one_line_whatever_its_cells_contain(rows: list[list[str]]) -> None:
    written = io.StringIO()
    csv.writer(written, quoting=csv.QUOTE_ALL).writerows(rows)
    lines = render_table(written.getvalue()).split("\n")
    assert len(lines) == len(rows) + 1
    assert all(line.startswith("| ") and line.endswith(" |") for line in lines)


async def test_the_pages_of_a_pdf_are_read() -> None:
    assert await read(pdf("The first page", "and the second"), "a.pdf") == "The first page\n\nand the second"


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (encrypted_pdf("secret", "word"), "is encrypted"),
        (pdf(""), "its pages are images, perhaps scanned"),
        (pdf(), "is a PDF with no pages"),
        (b"%PDF-1.7 and nothing more", "cannot be read as a PDF"),
        (pdf("hello")[:-200], "cannot be read as a PDF"),
    ],
    ids=["encrypted", "scanned", "no pages", "no PDF", "cut off"],
)
async def test_a_pdf_without_text_is_refused_with_the_reason(data: bytes, reason: str) -> None:
    message = await refusal(data, "a.pdf", "application/pdf")
    assert reason in message or "contains no text" in message


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"max_pdf_pages": 1}, "has 2 pages; allowed: at most 1"),
        ({"max_characters": 5}, "has more than 5 characters"),
        ({"pdf_time_s": 0.001}, "takes more than 0.001 s"),
        ({"max_bytes": 100}, "at most 100"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_a_pdf_that_takes_too_much_is_refused(limits: dict[str, float], reason: str) -> None:
    file = pdf("The first page", "and the second")
    assert reason in await refusal(file, "a.pdf", "application/pdf", **limits)


async def test_a_pdf_bomb_is_refused() -> None:
    bomb = pdf_bomb(60 << 20)
    assert len(bomb) < 1 << 20
    message = await refusal(bomb, "a.pdf", "application/pdf", pdf_memory_bytes=100 << 20)
    assert "too much memory" in message or "cannot be read" in message


@pytest.mark.parametrize(
    ("data", "kind", "reason"),
    [
        (b"\x89PNG\r\n", "image/png", "is an image: send it as an image_url part"),
        (b"PK\x03\x04\0\0\0", "application/zip", "neither UTF-8 text nor a PDF"),
        (b"\xff\xfe\x00\xd8", "text/plain", "neither UTF-8 text nor a PDF"),
        (b"", "text/plain", "is empty"),
        (b" \n ", "text/plain", "only white space"),
        (b'"' + b"x" * 200_000, "text/csv", "is not a table"),
    ],
)
async def test_an_unreadable_document_is_refused_with_the_reason(data: bytes, kind: str, reason: str) -> None:
    assert reason in await refusal(data, "a.bin", kind)


async def test_the_limit_on_a_documents_text_is_named() -> None:
    assert "has 11 characters; allowed: at most 10" in await refusal(b"01234567890", max_characters=10)


async def test_a_table_that_is_too_long_is_refused_with_its_length() -> None:
    message = await refusal(b"," * 50_000, "a.csv", max_characters=40_000)
    assert "has 50000 characters; allowed: at most 40000" in message


def test_a_table_is_measured_before_it_is_rendered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_program, "render_table", None)
    with pytest.raises(Unreadable, match="has 50000 characters; allowed: at most 40000"):
        read_plain(b"," * 50_000, True, 40_000)


@pytest.mark.parametrize("rows", [3, 5_000], ids=["few", "many"])
async def test_a_table_is_the_same_whoever_reads_it(rows: int) -> None:
    data = b'a;"b; c";d\n' * rows
    assert await read(data, "a.csv") == render_table(data.decode())


@pytest.mark.parametrize("repeats", [1, 20_000], ids=["short", "long"])
async def test_a_text_is_the_same_whoever_reads_it(repeats: int) -> None:
    assert await read("Grüße ".encode() * repeats) == "Grüße " * repeats


async def test_the_program_stays_for_the_next_document_and_each_has_a_process_of_its_own(
    reader: DocumentReader,
) -> None:
    for _ in range(3):
        assert await reader.read("acme", PDF, pdf("A page")) == "A page"
        assert await reader.read("acme", TABLE, b"a,b") == "| a | b |\n| --- | --- |"
    assert len(reader._programs.idle) == 1


async def test_a_document_that_breaks_its_limits_spoils_nothing_for_the_next() -> None:
    reader = DocumentReader("PDFs to be read", DocumentLimits(pdf_memory_bytes=100 << 20))
    try:
        with pytest.raises(Unreadable):
            await reader.read("acme", PDF, pdf_bomb(60 << 20))
        assert await reader.read("acme", PDF, pdf("A page")) == "A page"
    finally:
        await reader.close()


async def test_a_program_that_ended_is_replaced(reader: DocumentReader) -> None:
    assert await reader.read("acme", PDF, pdf("A page")) == "A page"
    [program] = reader._programs.idle
    program.kill()
    await program.wait()
    assert await reader.read("acme", PDF, pdf("A page")) == "A page"


async def test_whoever_leaves_has_its_reading_stopped(reader: DocumentReader) -> None:
    assert await reader.read("acme", TABLE, b"a,b")
    [program] = reader._programs.idle
    reading = asyncio.create_task(reader.read("acme", PDF, pdf_bomb(200 << 20)))
    await asyncio.sleep(0)
    assert not reader._programs.idle
    reading.cancel()
    await asyncio.wait([reading])
    assert program.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.killpg(program.pid, 0)


async def test_documents_are_charged_to_their_tenant_and_costly_ones_make_it_rest() -> None:
    share = ProcessorShare(0.2, free_s=0.0)
    reader = DocumentReader("PDFs to be read", DocumentLimits(), share)
    try:
        await reader.read("acme", PDF, pdf("A page"))
        assert share.rest_s("acme", 0.0, asyncio.get_running_loop().time()) > 0
        assert await reader.read("other", PDF, pdf("A page")) == "A page"
        assert await reader.read("acme", PDF, pdf("A page")) == "A page"  # after its rest
    finally:
        await reader.close()


async def test_documents_are_read_by_programs_that_give_way(reader: DocumentReader) -> None:
    assert await reader.read("acme", TABLE, b"a,b")
    [program] = reader._programs.idle
    assert os.sched_getscheduler(program.pid) == os.SCHED_BATCH
    assert os.getpriority(os.PRIO_PROCESS, program.pid) == NICENESS


async def test_a_few_pdfs_of_a_tenant_wait_to_be_read_and_the_rest_are_refused(
    reader: DocumentReader,
) -> None:
    wanted = [reader.read("acme", PDF, pdf("A page")) for _ in range(5)]
    answers = await asyncio.gather(*wanted, return_exceptions=True)
    assert answers.count("A page") == 3
    refused = [answer for answer in answers if isinstance(answer, InflightError)]
    assert [error.kind for error in refused] == [ErrorKind.RATE_LIMITED] * 2
    assert await reader.read("acme", PDF, pdf("A page")) == "A page"  # places are given back


@pytest.mark.parametrize(
    ("data", "said"),
    [("data:text/plain,hello", "expected data:TYPE;base64,DATA"), ("data:;base64,@@", "not base64")],
)
async def test_data_that_is_no_data_url_is_refused(data: str, said: str) -> None:
    with pytest.raises(InflightError, match=said):
        await Documents().read(FileReference(file_data=data), LOCAL_CALLER, WHERE)


async def test_bare_base64_is_accepted() -> None:
    reference = FileReference(file_data=b64encode(b"hello").decode())
    assert (await Documents().read(reference, LOCAL_CALLER, WHERE)).text == "hello"


async def test_an_uploaded_file_is_read_by_its_id() -> None:
    documents = Documents(FakeFiles({("local", "file-1"): ("notes.txt", b"hello")}))
    document = await documents.read(FileReference(file_id="file-1"), LOCAL_CALLER, WHERE)
    assert (document.name, document.text) == ("notes.txt", "hello")
    with pytest.raises(InflightError) as caught:
        await documents.read(FileReference(file_id="file-2"), LOCAL_CALLER, WHERE)
    assert caught.value.kind is ErrorKind.NOT_FOUND


@pytest.mark.parametrize("reference", [FileReference(), FileReference("file-1", "aGk=")])
async def test_a_file_comes_by_id_or_as_data(reference: FileReference) -> None:
    with pytest.raises(InflightError, match="either file_id or file_data"):
        await Documents(FakeFiles()).read(reference, LOCAL_CALLER, WHERE)


def test_the_program_that_reads_documents_imports_nothing_of_the_router() -> None:
    program = Path("router/content/documents/document_program.py")
    source = (Path(__file__).parents[4] / program).read_text()
    assert "import router" not in source
    assert "from router" not in source
