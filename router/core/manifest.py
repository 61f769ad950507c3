"""What a release is: fixed when it is added, and known by its digest ever after."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, field
from enum import Enum
from typing import Any

# They become names of Triton models and of files.
_PLAIN_NAME = r"[a-z0-9][a-z0-9._-]{0,63}"
# An adapter's is that of its base and its own: base:adapter.
MODEL_NAME = re.compile(rf"{_PLAIN_NAME}(:{_PLAIN_NAME})?")
NAMES_ALLOWED = (
    "1 to 64 of a-z, 0-9, '.', '_' and '-', the first a letter or a digit (of an adapter BASE:NAME)"
)
# Between base and adapter in names of Triton models: a name of a model has no capitals.
_ADAPTER_MARK = ".LORA."
_MEMBER_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
LARGEST_VERSION = 2**31 - 1


class Kind(str, Enum):
    """What clients can ask of it."""

    TEXT = "text"
    EMBEDDINGS = "embeddings"
    TENSORS = "tensors"  # any other Triton model, by KServe's protocol


@dataclass(frozen=True, slots=True)
class FileMark:
    """One file that a release is made of; a relative path starts in the releases' repository."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Needs:
    """What it takes to have it loaded, as far as can be told beforehand.

    Of the memory of so many `gpus`, an equal part of each; of the machine's own with 0.
    """

    weights_bytes: int = 0
    cache_bytes: int = 0
    gpus: int = 0

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.cache_bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """`members` are its Triton models in the order in which they are needed; the last is what requests name.

    `engine` is the one that stops go to, where there is one. A release that a stack brings with it, and
    writes anew at each start, has no files and no directory of its own: it `is_built_in`. One of a LoRA
    adapter names the release that it is an addition to as its `base`; its only member is the base's entry.
    """

    model: str
    version: int
    kind: Kind
    members: tuple[str, ...]
    engine: str = ""
    checkpoint_dir: str = ""
    weights_sha256: str = ""
    tokenizer_sha256: str = ""
    parameters: dict[str, str] = field(default_factory=dict)
    needs: Needs = field(default_factory=Needs)
    files: tuple[FileMark, ...] = ()
    is_built_in: bool = False
    source: str = ""  # the address that it was fetched from, pinned to these bytes
    base: str = ""

    def __post_init__(self) -> None:
        if not MODEL_NAME.fullmatch(self.model):
            raise ValueError(f"{self.model!r} cannot be the name of a model; allowed: {NAMES_ALLOWED}")
        if parent_of(self.model) != (split_name(self.base)[0] if self.base else None):
            raise ValueError(f"{self.model!r} is not the name of an adapter of {self.base or 'nothing'!r}")
        if type(self.version) is not int or not 1 <= self.version <= LARGEST_VERSION:
            raise ValueError(f"version {self.version!r}; allowed: 1 to {LARGEST_VERSION}")
        if not self.members:
            raise ValueError("a release needs at least one Triton model")
        for member in self.members:
            if not _MEMBER_NAME.fullmatch(member):
                raise ValueError(f"{member!r} cannot be the name of a Triton model")

    @property
    def name(self) -> str:
        return f"{self.model}@{self.version}"

    @property
    def entry(self) -> str:
        """The Triton model that requests name."""
        return self.members[-1]

    @property
    def adapter(self) -> str:
        """What the engine knows the adapter by; empty where it is none."""
        return entry_name(self.model, self.version) if self.base else ""

    def to_json(self) -> str:
        """The same text for the same release, whoever writes it."""
        fields = asdict(self)
        for name in ("source", "base"):  # as it was written before there were any, or its digest would differ
            if not fields[name]:
                del fields[name]
        if not self.needs.gpus:  # which routers of 0.7.0 refuse to read
            del fields["needs"]["gpus"]
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    @property
    def identity(self) -> tuple[str, ...]:
        """What two releases share that differ in their number alone."""
        parameters = json.dumps(self.parameters, sort_keys=True)
        return (self.model, self.kind.value, self.weights_sha256, self.tokenizer_sha256, parameters)


def from_json(text: str) -> Manifest:
    """Raises ValueError for anything that no manifest looks like."""
    try:
        value: dict[str, Any] = json.loads(text)
        if not isinstance(value["members"], list) or not isinstance(value["parameters"], dict):
            raise TypeError("members has to be a list, and parameters an object")
        return Manifest(
            **{
                **value,
                "kind": Kind(value["kind"]),
                "members": tuple(value["members"]),
                "needs": Needs(**value["needs"]),
                "files": tuple(FileMark(**each) for each in value["files"]),
            }
        )
    except (KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"this is not the description of a release: {error}") from error


def entry_name(model: str, version: int) -> str:
    """What the Triton model is called that requests to a release name."""
    return f"{model.replace(':', _ADAPTER_MARK)}.{version}"


def parent_of(model: str) -> str | None:
    """The model that an adapter is an addition to; None for any other model."""
    base, colon, _ = model.partition(":")
    return base if colon else None


def member_name(model: str, version: int, step: str) -> str:
    return f"{entry_name(model, version)}.{step}"


def split_name(text: str) -> tuple[str, int | None]:
    """model@version, or a model alone; raises ValueError for a version that is no number."""
    model, at, version = text.partition("@")
    if not at:
        return model, None
    return model, read_version(version)


def read_version(text: str) -> int:
    """Each number has one way to be written; raises ValueError for anything else."""
    is_number = text.isascii() and text.isdigit() and len(text) <= len(str(LARGEST_VERSION))
    if not is_number or text[0] == "0" or int(text) > LARGEST_VERSION:
        shown = text if len(text) <= 20 else f"{text[:20]}…"
        raise ValueError(f"{shown!r} is not a version; allowed: 1 to {LARGEST_VERSION}")
    return int(text)
