"""A page for people: one style, no script, and nothing from anywhere else."""

from __future__ import annotations

import html
from base64 import b64encode
from hashlib import sha256
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.core.record import Record
    from router.http.exchange import Exchange

_STYLE = """
:root{color-scheme:light dark}
body{font:16px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}
code{background:#8882;padding:.1em .3em;border-radius:.2em;overflow-wrap:anywhere}
h2{margin-top:2.5rem;border-top:1px solid #8884;padding-top:1rem}
h3{margin-top:2rem}
table{border-collapse:collapse;width:100%}
td,th{text-align:left;vertical-align:top;padding:.25rem .8rem .25rem 0;border-bottom:1px solid #8883}
ul{padding-left:1.2rem}
"""
_DIGEST = b64encode(sha256(_STYLE.encode()).digest()).decode()
_POLICY = (
    f"default-src 'none'; style-src 'sha256-{_DIGEST}'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
_PAGE = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
    '<meta name="viewport" content="width=device-width, initial-scale=1"><style>{style}</style></head>'
    "<body><h1>{title}</h1>{body}</body></html>"
)


def html_page(title: str, body: str) -> bytes:
    return _PAGE.format(title=html.escape(title), style=_STYLE, body=body).encode()


def respond_page(exchange: Exchange, record: Record, page: bytes) -> None:
    headers = [
        ("content-type", "text/html; charset=utf-8"),
        ("content-security-policy", _POLICY),
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("x-request-id", record.request_id),
    ]
    exchange.respond(200, page, headers)


def link(target: str, text: str = "") -> str:
    return f'<a href="{html.escape(target)}"><code>{html.escape(text or target)}</code></a>'


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    """Cells are HTML already."""
    if not rows:
        return ""
    lines = ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    titles = "".join(f"<th>{title}</th>" for title in head)
    return f"<table><tr>{titles}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"
