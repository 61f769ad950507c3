"""Images that a model is shown, and what a model takes of them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec


class Image(msgspec.Struct, frozen=True):
    """A file as it came; what is said of it beside its hash is by its own header."""

    data: bytes
    sha256: str
    media_type: str
    width: int
    height: int

    @property
    def description(self) -> str:
        """For logs, which never have the image itself."""
        size = f"{self.width}x{self.height}, {len(self.data)} bytes"
        return f"[{self.media_type}, {size}, sha256 {self.sha256}]"


class Vision(NamedTuple):
    """What a release takes: so many images in a request, of up to so many tokens each."""

    max_images: int
    image_tokens: int
