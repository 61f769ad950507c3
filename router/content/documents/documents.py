"""From the files that a request sends or refers to, to the text that a model reads."""

from __future__ import annotations

import binascii
from base64 import b64decode
from typing import Protocol

import msgspec

from python_backend.sharing.processor_share import ProcessorShare
from python_backend.wire.errors import ErrorKind, InflightError
from router.content.documents.document_program import PDF, READABLE, TABLE, TEXT, Unreadable, read_plain
from router.content.documents.readers import DocumentLimits, DocumentReader
from router.content.files.rows import content
from router.core.messages import FileReference, Message, Part
from router.core.side_work import SideWork
from router.core.tenant import Caller, Scope
from router.request.decoding import invalid
from router.request.identity import check_scope
from router.store.database import StoreAccess

_PDF = "application/pdf"
_TABLES = ("text/csv", "text/tab-separated-values", "application/csv")
_TABLE_NAMES = (".csv", ".tsv")
# So much is read within a fraction of a millisecond, here.
_QUICK_TEXT_BYTES = 64 << 10
_QUICK_TABLE_BYTES = 1 << 10


class Files(Protocol):
    """The files that tenants have uploaded."""

    async def read(self, caller: Caller, file_id: str, max_bytes: int) -> tuple[str, bytes]:
        """Name and content; NOT_FOUND for those of others too, TOO_LARGE beyond `max_bytes`."""


class Document(msgspec.Struct, frozen=True):
    name: str
    text: str

    def rendered(self) -> str:
        """As a model sees it: the name tells which file a question is about."""
        return f'<file name="{self.name}">\n{self.text}\n</file>'


class Documents:
    """Reads what a request refers to; `where` is the place in the request that errors name."""

    def __init__(
        self,
        files: Files | None = None,
        limits: DocumentLimits | None = None,
        share: ProcessorShare | None = None,
        side_work: SideWork | None = None,
    ) -> None:
        self._files = files
        self._limits = limits = limits or DocumentLimits()
        self._pdfs = DocumentReader("PDFs to be read", limits, share, side_work)
        self._others = DocumentReader("files to be read", limits, share, side_work)

    async def close(self) -> None:
        await self._pdfs.close()
        await self._others.close()

    def check_count(self, files: int, where: str) -> None:
        if files > self._limits.max_files:
            most = self._limits.max_files
            raise invalid(f"{where}: {files} files; allowed: at most {most} in one request", where)

    async def read(self, reference: FileReference, caller: Caller, where: str) -> Document:
        name, kind, data = await self._fetch(reference, caller, where)
        if len(data) > self._limits.max_bytes:
            reason = f"has {len(data)} bytes; allowed: at most {self._limits.max_bytes}"
            raise refusal(where, name, reason)
        try:
            text = await self._text(caller.organisation.id, name.lower(), kind, data)
        except Unreadable as problem:
            raise refusal(where, name, str(problem)) from None
        if len(text) > self._limits.max_characters:
            reason = f"has {len(text)} characters; allowed: at most {self._limits.max_characters}"
            raise refusal(where, name, reason)
        return Document(name, text)

    async def _fetch(self, reference: FileReference, caller: Caller, where: str) -> tuple[str, str, bytes]:
        if (reference.file_id is None) == (reference.file_data is None):
            raise invalid(f"{where}: give either file_id or file_data", where)
        if reference.file_data is not None:
            name = _printable(reference.filename or "file")
            kind, data = _decode(reference.file_data, f"{where}.file_data")
            return name, kind, data
        if self._files is None:
            raise InflightError(ErrorKind.UNSUPPORTED, f"{where}.file_id: send file_data instead", where)
        file_id = reference.file_id or ""
        name, data = await self._files.read(caller, file_id, self._limits.max_bytes)
        return _printable(reference.filename or name), "", data

    async def _text(self, tenant: str, name: str, kind: str, data: bytes) -> str:
        if not data:
            raise Unreadable("is empty")
        if kind == _PDF or data.startswith(b"%PDF-"):
            return await self._pdfs.read(tenant, PDF, data)
        if kind.startswith("image/"):
            raise Unreadable(f"is an image: send it as an image_url part; supported as files: {READABLE}")
        is_table = kind in _TABLES or name.endswith(_TABLE_NAMES)
        if len(data) <= (_QUICK_TABLE_BYTES if is_table else _QUICK_TEXT_BYTES):
            return read_plain(data, is_table, self._limits.max_characters)
        return await self._others.read(tenant, TABLE if is_table else TEXT, data)


def refusal(where: str, name: str, reason: str) -> InflightError:
    return invalid(f"{where}: the file '{name}' {reason}", where)


def _decode(data: str, where: str) -> tuple[str, bytes]:
    """Type and content of a data URL; bare base64 is taken too, and has no type."""
    kind = ""
    if data.startswith("data:"):
        head, comma, data = data.partition(",")
        kind = head[len("data:") :].partition(";")[0].strip().lower()
        if not comma or not head.endswith(";base64"):
            raise invalid(f"{where}: expected data:TYPE;base64,DATA", where)
    try:
        return kind, b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise invalid(f"{where}: this is not base64", where) from None


def _printable(name: str) -> str:
    """A name that cannot pass for anything else in a prompt or in an error."""
    return "".join(char if char.isprintable() and char != '"' else "_" for char in name[:128])


async def expand(messages: list[Message], caller: Caller, documents: Documents) -> list[Message]:
    """The same list where there is no file in it."""
    files = sum(_files(message) for message in messages)
    if not files:
        return messages
    documents.check_count(files, "messages")
    return [await _expanded(message, index, caller, documents) for index, message in enumerate(messages)]


def _files(message: Message) -> int:
    return sum(part.type == "file" for part in message.content) if isinstance(message.content, list) else 0


async def _expanded(message: Message, index: int, caller: Caller, documents: Documents) -> Message:
    if not isinstance(message.content, list):
        return message
    parts = []
    for position, part in enumerate(message.content):
        if part.type == "file":
            where = f"messages[{index}].content[{position}].file"
            document = await documents.read(part.file or FileReference(), caller, where)
            part = Part("text", document.rendered())
        parts.append(part)
    return msgspec.structs.replace(message, content=parts)


class UploadedFiles:
    """The only way from a file's id in a request to its content, at whichever door it came in."""

    def __init__(self, store: StoreAccess) -> None:
        self._store = store

    async def read(self, caller: Caller, file_id: str, max_bytes: int) -> tuple[str, bytes]:
        check_scope(caller, Scope.FILES)
        if not file_id.isascii() or not file_id.isprintable():
            raise InflightError(ErrorKind.NOT_FOUND, "file not found", "file_id")
        file, data = await content(self._store, caller.organisation.id, file_id, max_bytes)
        return file.filename, data
