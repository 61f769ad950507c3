"""What Triton says about a failure, as people may read it: without paths and names of memory regions."""

from __future__ import annotations

import re

_IN_NAME = r"[^\s/'\"`,;:()<>\[\]{}]"
_PATH = re.compile(rf"(?<![\w.])(?:file:)?/(?:{_IN_NAME}*/)*({_IN_NAME}*)")
_REGION = re.compile(r"/?\btriton_python_backend_shm_region_\w*")
_SPACE = re.compile(r"\s+")
# How Triton begins when a model cannot be loaded, or one that it is made of.
_PREAMBLE = re.compile(
    r"load failed for model '(?P<model>[^']*)': "
    r"(?:ensemble '[^']*' depends on '(?P<member>[^']*)' which has no loaded version\. "
    r"Model '[^']*' loading failed with error: )?"
    r"version \d+ is at UNAVAILABLE state: (?:Internal: |Invalid argument: )?"
)
_MOST_CHARACTERS = 400


def scrub(text: str) -> str:
    """One line; of each path the last name, which says what it is about and not where it is."""
    short = _SPACE.sub(" ", text[: 16 * _MOST_CHARACTERS]).strip()
    short = _PREAMBLE.sub(lambda found: f"{found['member'] or found['model']}: ", short)
    short = _REGION.sub("a region of shared memory", short)
    short = _PATH.sub(lambda found: found[1] or "a path", short)
    return short if len(short) <= _MOST_CHARACTERS else f"{short[: _MOST_CHARACTERS - 1]}…"
