"""What the head of a request must be like, beyond what the parser checks."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from router.http.exchange import Refusal

# Two of one of these would let two readers of a request disagree about it.
ONLY_ONCE = frozenset(
    {
        "authorization",
        "content-encoding",
        "content-length",
        "content-type",
        "host",
        "origin",
        "sec-fetch-site",
        "transfer-encoding",
        "x-api-key",
    }
)


class Refused(Exception):
    """A request that is answered with an error before it is read to its end; by `answer`, where given."""

    def __init__(self, status: int, message: str, answer: Refusal | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.answer = answer


def check_head(method: bytes, target: bytes, version: str, headers: dict[str, str]) -> None:
    if method == b"CONNECT":
        raise Refused(400, "this server is not a proxy")
    if not target.startswith(b"/"):
        raise Refused(400, "the request target must be a path")
    if version == "1.1":
        if not headers.get("host"):
            raise Refused(400, "a request must have a Host header")
        if headers.get("transfer-encoding", "chunked").lower() != "chunked":
            raise Refused(400, "Transfer-Encoding: only chunked is accepted")
    elif version != "1.0":
        raise Refused(505, "this server speaks HTTP/1.1")
    elif "transfer-encoding" in headers:
        raise Refused(400, "Transfer-Encoding is not allowed in HTTP/1.0")
