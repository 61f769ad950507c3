"""The images of a chat: refused where the model cannot see, and looked at by their headers alone."""

from __future__ import annotations

import hashlib
from base64 import b64decode
from typing import TYPE_CHECKING, NamedTuple, Protocol

from python_backend.wire.errors import ErrorKind, InflightError
from router.chat.image_headers import read_header
from router.core.images import Image
from router.request.decoding import invalid

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.core.messages import ImageReference, Message
    from router.core.record import Record
    from router.core.tenant import Caller
    from router.request.aside import Aside
    from router.routing.models import ServedModel

_READ = "supported: PNG, JPEG, WebP and GIF"
_BASE64 = ";base64"


class ImageLimits(NamedTuple):
    max_bytes: int = 8 << 20
    max_pixels: int = 16 << 20


class Files(Protocol):
    """The files that tenants have uploaded."""

    async def read(self, caller: Caller, file_id: str, max_bytes: int) -> tuple[str, bytes]:
        """Name and content; NOT_FOUND for those of others too, TOO_LARGE beyond `max_bytes`."""


class Hosts(Protocol):
    """Other machines that the operator lets images be fetched from."""

    async def fetch(self, url: str, tenant: str, where: str) -> bytes:
        """The file; raises InflightError for a host that is not allowed, and for what is no file there."""


class Images:
    """Reads what a chat shows. Errors name an image by its number, the first of the chat being 1."""

    def __init__(
        self,
        aside: Aside,
        files: Files | None = None,
        hosts: Hosts | None = None,
        limits: ImageLimits | None = None,
    ) -> None:
        self._aside = aside
        self._files = files
        self._hosts = hosts
        self._limits = limits or ImageLimits()

    async def read(
        self, messages: Sequence[Message], model: ServedModel, record: Record
    ) -> tuple[Image, ...]:
        asked = asked_images(messages, model)
        return tuple([await self._read(each, f"image {n}", record) for n, each in enumerate(asked, 1)])

    async def _read(self, asked: ImageReference, where: str, record: Record) -> Image:
        url, tenant, limits = asked.url or "", record.tenant, self._limits
        if (asked.url is None) == (asked.file_id is None):
            raise _refusal(where, "give either a url or a file_id")
        if url.startswith("data:"):
            return await self._aside.when_large(len(url), tenant, _of_data_url, url, where, limits)
        if asked.file_id is not None:
            data = await self._uploaded(record.caller, asked.file_id, where)
        elif url.startswith(("https://", "http://")):
            data = await self._fetched(url, tenant, where)
        else:
            raise _refusal(where, "expected a url that begins with data: or https://, or a file_id")
        return await self._aside.when_large(len(data), tenant, look_at, data, where, limits)

    async def _uploaded(self, caller: Caller, file_id: str, where: str) -> bytes:
        if self._files is None:
            raise InflightError(ErrorKind.UNSUPPORTED, f"{where}: send a data: URL instead", "file_id")
        _, data = await self._files.read(caller, file_id, self._limits.max_bytes)
        return data

    async def _fetched(self, url: str, tenant: str, where: str) -> bytes:
        if self._hosts is None:
            message = f"{where}: images are not fetched from other hosts; send a data: URL or a file_id"
            raise InflightError(ErrorKind.UNSUPPORTED, message, "messages")
        return await self._hosts.fetch(url, tenant, where)


def asked_images(messages: Sequence[Message], model: ServedModel) -> list[ImageReference]:
    """Those of a chat, in their order; raises InflightError where the model does not take them."""
    asked: list[ImageReference] = []
    for message in messages:
        found = message.images
        if found and message.role != "user":
            number = len(asked) + 1
            raise _refusal(f"image {number}", f"is in a message of the role {message.role}; allowed: user")
        asked += found
    if not asked:
        return asked
    vision = model.vision
    if vision is None:
        message_text = f"image 1: the model '{model.name}' reads text, not images"
        raise InflightError(ErrorKind.UNSUPPORTED, message_text, "messages")
    if len(asked) > vision.max_images:
        most = f"the model '{model.name}' takes at most {vision.max_images} in one request"
        raise invalid(f"{len(asked)} images: {most}", "messages")
    return asked


def image_tokens(messages: Sequence[Message], model: ServedModel) -> int:
    """How many tokens the images of a chat are at most; how many they are, the model knows once it reads."""
    asked, vision = asked_images(messages, model), model.vision
    return len(asked) * vision.image_tokens if vision is not None else 0


def look_at(data: bytes, where: str, limits: ImageLimits) -> Image:
    """Reads the header alone: a few bytes may stand for more pixels than there is memory."""
    if len(data) > limits.max_bytes:
        raise _refusal(where, f"has {len(data)} bytes; allowed: at most {limits.max_bytes}")
    try:
        media_type, width, height = read_header(data)
    except ValueError:
        raise _refusal(where, f"is not a readable image; {_READ}") from None
    if width * height > limits.max_pixels:
        raise _refusal(where, f"has {width}x{height} pixels; allowed: at most {limits.max_pixels} in total")
    return Image(data, hashlib.sha256(data).hexdigest(), media_type, width, height)


def _of_data_url(url: str, where: str, limits: ImageLimits) -> Image:
    head, comma, encoded = url.partition(",")
    if not comma or not head.endswith(_BASE64):
        raise _refusal(where, "expected data:TYPE;base64,DATA")
    if len(encoded) * 3 // 4 - 2 > limits.max_bytes:  # less what fills it up, which is not decoded first
        raise _refusal(where, f"is larger than {limits.max_bytes} bytes, the limit")
    try:
        data = b64decode(encoded, validate=True)
    except ValueError:
        raise _refusal(where, "the data is not base64") from None
    return look_at(data, where, limits)


def _refusal(where: str, reason: str) -> InflightError:
    return invalid(f"{where}: {reason}", "messages")
