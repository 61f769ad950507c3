"""Small images, whole and broken, and a model that sees them."""

from __future__ import annotations

import base64
import struct
import zlib
from io import BytesIO

import PIL.Image

from router.core.images import Vision
from router.routing.chat_template import AddedToken, ChatTemplate, TokenizerFile
from router.routing.models import ServedModel
from tests.fakes.pipeline import FakePipeline
from tests.router.running import RunningRouter

IMAGE_TOKENS = 50
# As templates of models that see are written: content in parts, or as one text.
SEEING = ChatTemplate(
    "{% for m in messages %}<{{ m.role }}>"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}"
    "</{{ m.role }}>{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}",
    None,
    TokenizerFile((AddedToken("<image>", special=True),)),
)


def seer(max_images: int = 2, name: str = "seer") -> ServedModel:
    return ServedModel(name, FakePipeline(vision=Vision(max_images, IMAGE_TOKENS)), SEEING)


def pipeline_of(router: RunningRouter, name: str = "seer") -> FakePipeline:
    found = router.parts.models.find(name).pipeline
    assert isinstance(found, FakePipeline)
    return found


def picture(kind: str = "PNG", size: tuple[int, int] = (8, 6), colour: str = "red") -> bytes:
    with BytesIO() as file:
        PIL.Image.new("RGB", size, colour).save(file, kind)
        return file.getvalue()


def data_url(data: bytes, media_type: str = "image/png") -> str:
    return f"data:{media_type};base64,{base64.b64encode(data).decode()}"


def bomb(width: int, height: int) -> bytes:
    """A PNG of a few bytes whose header says that it is so large."""
    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", len(header) - 4) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + struct.pack(">I", 16) + b"IDAT"
