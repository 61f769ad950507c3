"""Addresses of models that lie elsewhere: hf://, s3://, gs://, oci://, https:// and file://."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

SCHEMES = ("hf", "s3", "gs", "oci", "https", "http", "file")
FORMS = {
    "hf": "hf://ORG/NAME, with @REVISION and /FILE.gguf where wanted",
    "s3": "s3://BUCKET/FOLDER or s3://BUCKET/FILE.gguf",
    "gs": "gs://BUCKET/FOLDER or gs://BUCKET/FILE.gguf",
    "oci": "oci://REGISTRY/NAME:TAG or oci://REGISTRY/NAME@sha256:DIGEST",
    "https": "https://HOST/FILE.gguf, or https://HOST/FOLDER/ with a SHA256SUMS in it",
    "http": "http://HOST/FILE.gguf#sha256=DIGEST",
    "file": "file:///FOLDER or file:///FILE.gguf",
}
_HUB = re.compile(
    r"(?P<repository>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+(?:%2[fF][\w.-]+)*))?(?:/(?P<file>.+))?"
)
_REGISTRY = re.compile(
    r"(?P<host>[^/@]+)/(?P<name>[a-z0-9][a-z0-9._/-]*)(?::(?P<tag>[\w][\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_COMMIT = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class AddressError(ValueError):
    """An address that leads nowhere: the message says what is allowed."""


@dataclass(frozen=True)
class Address:
    """`place` is the repository, bucket or host; `path` what is meant in it; `sha256` what it must be.

    Of a folder, `sha256` is the hash over the names, sizes and hashes of all its files.
    """

    scheme: str
    place: str
    path: str = ""
    revision: str = ""
    sha256: str = ""
    query: str = ""

    @property
    def name(self) -> str:
        """What the model would be called by its address."""
        last = (self.path or self.place).rstrip("/").rsplit("/", 1)[-1]
        return last.removesuffix(".gguf")

    @property
    def is_one_file(self) -> bool:
        return self.path.endswith(".gguf")

    @property
    def is_pinned(self) -> bool:
        """Whether it means the same bytes for ever."""
        return bool(self.sha256 or _COMMIT.fullmatch(self.revision) or self.revision.startswith("sha256:"))

    def pinned_to(self, revision: str, sha256: str) -> str:
        """The address of exactly these bytes. A query may be a secret: it is left out."""
        if self.scheme == "hf":
            return f"hf://{self.place}@{revision}{f'/{self.path}' if self.path else ''}"
        if self.scheme == "oci":
            return f"oci://{self.place}/{self.path}@{revision}"
        return f"{self.scheme}://{self.place}/{self.path}#sha256={sha256}"

    @property
    def asked(self) -> str:
        """As it was asked for, without a query."""
        revision = f"@{self.revision}" if self.revision else ""
        return f"{self.without_pin}{revision}{f'#sha256={self.sha256}' if self.sha256 else ''}"

    @property
    def without_pin(self) -> str:
        return f"{self.scheme}://{self.place}/{self.path}"


def is_address(text: str) -> bool:
    return "://" in text


def is_elsewhere(text: str) -> bool:
    """An address of which others decide what lies there."""
    return is_address(text) and not text.startswith("file://")


def parse_address(text: str) -> Address:
    scheme, _, rest = text.partition("://")
    if scheme not in SCHEMES:
        raise AddressError(f"{text!r}: allowed are {', '.join(f'{each}://' for each in SCHEMES)}")
    rest, sha256 = _without_hash(text, rest)
    if scheme == "hf":
        return _hub(rest, sha256)
    if scheme == "oci":
        return _registry(rest, sha256)
    return _located(scheme, rest, sha256)


def _without_hash(text: str, rest: str) -> tuple[str, str]:
    rest, mark, fragment = rest.partition("#")
    sha256 = fragment.removeprefix("sha256=")
    if mark and not (fragment.startswith("sha256=") and _SHA256.fullmatch(sha256)):
        raise AddressError(f"{text!r}: expected #sha256= and 64 lowercase hexadecimal digits")
    return rest, sha256


def _hub(rest: str, sha256: str) -> Address:
    found = _HUB.fullmatch(rest)
    if found is None or ".." in rest:
        raise refusal("hf", rest)
    file, revision = found["file"] or "", unquote(found["revision"] or "")
    if file and not file.endswith(".gguf"):
        raise AddressError(f"hf://{rest}: a single file must be a .gguf; {FORMS['hf']}")
    return Address("hf", found["repository"], file, revision, sha256)


def _registry(rest: str, sha256: str) -> Address:
    found = _REGISTRY.fullmatch(rest)
    if found is None:
        raise refusal("oci", rest)
    if sha256:
        raise AddressError(f"oci://{rest}: pin it by its own digest: oci://REGISTRY/NAME@sha256:DIGEST")
    return Address("oci", found["host"], found["name"], found["digest"] or found["tag"] or "latest")


def _located(scheme: str, rest: str, sha256: str) -> Address:
    parts = urlsplit(f"{scheme}://{rest}")
    if parts.username or parts.password:
        # In a message it would be read by more people still.
        raise AddressError(
            f"{scheme}://…@{parts.hostname}: an address must not contain a password, because others can read "
            "it; put it into ~/.netrc"
        )
    path = unquote(parts.path).lstrip("/") if scheme != "file" else unquote(parts.path)
    is_wrong = not path or ".." in path.split("/") or (scheme == "file") == bool(parts.netloc)
    if is_wrong or (parts.query and scheme not in ("https", "http")):
        raise refusal(scheme, rest.partition("?")[0])
    if scheme == "http" and not sha256:
        raise AddressError(
            f"http://{rest.partition('?')[0]}: it could be changed in transit: use https://, or pin the "
            "content with #sha256=DIGEST"
        )
    if scheme in ("https", "http") and not path.endswith((".gguf", "/")):
        raise refusal(scheme, rest.partition("?")[0])
    return Address(scheme, parts.netloc, path, "", sha256, parts.query)


def refusal(scheme: str, rest: str) -> AddressError:
    return AddressError(f"{scheme}://{rest}: expected {FORMS[scheme]}")
