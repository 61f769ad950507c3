"""Small PDFs, written out by hand."""

from __future__ import annotations

import io
import zlib

from pypdf import PdfReader, PdfWriter


def pdf(*pages: str) -> bytes:
    """One page for each text; a page of an empty text has none, as a scanned one."""
    kids = " ".join(f"{4 + 2 * index} 0 R" for index in range(len(pages)))
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(pages)} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for index, text in enumerate(pages):
        content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET" if text else ""
        objects += [_page(5 + 2 * index), f"<< /Length {len(content)} >>\nstream\n{content}\nendstream"]
    return _file(objects)


def pdf_bomb(inflated_bytes: int) -> bytes:
    """A small file with one page, whose content becomes large when it is read."""
    content = zlib.compress(b" " * inflated_bytes, 1).decode("latin-1")
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        "<< /Type /Pages /Kids [4 0 R] /Count 1 >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        _page(5),
        f"<< /Length {len(content)} /Filter /FlateDecode >>\nstream\n{content}\nendstream",
    ]
    return _file(objects)


def _page(content: int) -> str:
    return (
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] /Contents {content} 0 R "
        "/Resources << /Font << /F1 3 0 R >> >> >>"
    )


def _file(objects: list[str]) -> bytes:
    out, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(out))
        out += f"{number} 0 obj\n{each}\nendobj\n".encode("latin-1")
    table = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(objects) + 1
    end = f"xref\n0 {size}\n0000000000 65535 f \n{table}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    return out + f"{end}startxref\n{len(out)}\n%%EOF\n".encode()


def encrypted_pdf(text: str, password: str) -> bytes:
    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf(text))))
    writer.encrypt(password, algorithm="RC4-128")
    written = io.BytesIO()
    writer.write(written)
    return written.getvalue()
