"""The files that may come from an address: data, which no program runs when it reads them.

It is a list of what is allowed, because nobody can list all that runs code: a name that is not on it stays
where it is. `--runs-code` lifts the list for one release, and never brings a backend's library.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from launcher.packaging.remote.source import SourceError

if TYPE_CHECKING:
    from launcher.packaging.remote.source import Listing

_DATA = re.compile(
    r"""
    .+\.(safetensors | gguf | onnx | onnx[._]data(_\d+)?  # weights; those of ONNX may lie beside it
      | json | jinja | tiktoken)                            # configs and indexes, chat templates, tokenizers
    | (tokenizer | spiece | sentencepiece(\.bpe)?)\.model(\.v\d+)?
    | vocab\.txt | merges\.txt
    """,
    re.VERBOSE | re.IGNORECASE,
)
_WEIGHTS = re.compile(r".+\.(safetensors|gguf|onnx)", re.IGNORECASE)
# Triton loads BACKEND.so from a model's own directory before it looks among its own.
_BACKEND = re.compile(r"libtriton_.*", re.IGNORECASE)
_MOST_NAMED = 5


def is_data(name: str) -> bool:
    return bool(_DATA.fullmatch(_last(name)))


def only_data(listing: Listing, where: str) -> Listing:
    """Leave out all that is not data; raise SourceError where no weights are left."""
    kept = tuple(file for file in listing.files if is_data(file.name))
    others = tuple(file for file in listing.files if not is_data(file.name))
    found = replace(listing, files=kept, left_out=(*listing.left_out, *others))
    if found.left_out and not any(_WEIGHTS.fullmatch(_last(file.name)) for file in kept):
        raise SourceError(_why_nothing(found, where))
    return found


def all_but_backends(listing: Listing, where: str) -> Listing:
    """Refuse a backend's library; the operator has allowed all else to run."""
    for file in (*listing.files, *listing.left_out):
        if _BACKEND.fullmatch(_last(file.name)):
            raise SourceError(
                f"{where} has {file.name}: a backend's library is never fetched from an address. Install the "
                "backend where Triton has its own"
            )
    return listing


def named(listing: Listing) -> str:
    """Some of what is left out, for a message."""
    names = [file.name for file in listing.left_out]
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(names[:_MOST_NAMED]) + more


def _why_nothing(listing: Listing, where: str) -> str:
    names = [file.name for file in listing.left_out]
    if ggufs := sorted(name for name in names if name.lower().endswith(".gguf")):
        return f"{where} has no *.safetensors; it has {', '.join(ggufs)}: name one: {where}/FILE.gguf"
    if any(_last(name).lower() == "config.pbtxt" for name in names):
        return (
            f"{where} is a Triton model (it has {named(listing)}), which may run code: copy it to a folder "
            "of your own and add that, or allow what it runs with `inflight release add --runs-code`"
        )
    return (
        f"{where} has no weights as *.safetensors, *.gguf or *.onnx: it has {named(listing)}. Other formats "
        "may run code when they are read; convert them to safetensors, or use a revision that has some"
    )


def _last(name: str) -> str:
    return name.rsplit("/", 1)[-1]
