"""Run as a program of its own: takes a PDF on standard input, gives its text as JSON on standard output.

A PDF is a program for a viewer, and may be written to exhaust whoever reads it. So it is read here, under
limits on memory and time that the system enforces, and nothing of the router is imported or within reach.
"""

from __future__ import annotations

import io
import json
import logging
import os
import resource
import sys
import warnings


def main(max_pages: int, max_characters: int, memory_bytes: int, cpu_s: int) -> None:
    os.nice(10)  # the streams of others go first
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    warnings.simplefilter("ignore")
    logging.disable()
    try:
        answer = read(sys.stdin.buffer.read(), max_pages, max_characters)
    except MemoryError:
        answer = {"reason": "needs too much memory to be read"}
    except RecursionError:
        answer = {"reason": "is nested too deeply to be read"}
    except Exception as error:  # pypdf fails on broken files in as many ways as files can be broken
        answer = {"reason": f"cannot be read as a PDF ({type(error).__name__})"}
    sys.stdout.write(json.dumps(answer))


def read(data: bytes, max_pages: int, max_characters: int) -> dict[str, str]:
    from pypdf import PdfReader

    document = PdfReader(io.BytesIO(data))
    if document.is_encrypted:
        return {"reason": "is encrypted; send it without its password"}
    pages = len(document.pages)
    if pages == 0:
        return {"reason": "is a PDF without pages"}
    if pages > max_pages:
        return {"reason": f"has {pages} pages; at most {max_pages} are read"}
    texts, characters = [], 0
    for page in document.pages:
        # Half of a pair of surrogates, which broken fonts yield, cannot be sent anywhere.
        text = page.extract_text().encode("utf-8", "replace").decode().strip()
        characters += len(text)
        if characters > max_characters:
            return {"reason": f"has more than {max_characters} characters of text, the most that is read"}
        texts.append(text)
    if not characters:
        return {"reason": "holds no text: its pages are pictures, perhaps scanned, and are not recognised"}
    return {"text": "\n\n".join(filter(None, texts))}


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
