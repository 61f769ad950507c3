"""What the router is told at start: one TOML file."""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from pathlib import Path

# Model names reach Triton: nothing in them may look like a path, an option or a command.
_NAME = r"^[a-z0-9][a-z0-9._-]{0,63}$"
_TRITON_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"


class SettingsError(Exception):
    """A setting that cannot be used: the message names the key, the value and what is allowed."""


class ModelSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A model that clients may name, and the Triton models behind it."""

    name: Annotated[str, Meta(pattern=_NAME)]
    checkpoint_dir: str
    pipeline: Annotated[str, Meta(pattern=_TRITON_NAME)] = "ensemble"
    engine: Annotated[str, Meta(pattern=_TRITON_NAME)] = "tensorrt_llm"


class Tuning(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What may be chosen whatever the router stands in front of."""

    max_body_bytes: Annotated[int, Meta(ge=1024, le=64 << 20)] = 1 << 20
    stop_timeout_s: Annotated[float, Meta(gt=0, le=600)] = 5.0


class Settings(Tuning, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything the router needs to start."""

    triton_grpc_url: str
    models: Annotated[tuple[ModelSettings, ...], Meta(min_length=1)]
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    drain_timeout_s: Annotated[float, Meta(ge=0)] = 30.0


Kind = TypeVar("Kind", bound=Tuning)


def load(path: Path) -> Settings:
    return parse(_read(path))


def check_tuning(path: Path) -> None:
    """For a launcher that knows the rest only later: judges a file with nothing but tuning in it."""
    _convert(_read(path), Tuning)


def parse(text: str) -> Settings:
    settings = _convert(text, Settings)
    _check(settings)
    return settings


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error


def _convert(text: str, kind: type[Kind]) -> Kind:
    try:
        values: dict[str, Any] = msgspec.toml.decode(text)
    except msgspec.DecodeError as error:
        raise SettingsError(f"the settings file is not valid TOML: {error}") from error
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise SettingsError(_describe(str(error), kind)) from error


def _describe(problem: str, whole: type[Tuning]) -> str:
    what, _, where = problem.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    if "unknown field" in what:
        kind: type[msgspec.Struct] = ModelSettings if path.startswith("models") else whole
        allowed = ", ".join(kind.__struct_fields__)
        key = ".".join(filter(None, [path, what.split("`")[1]]))
        return f"unknown setting {key}: allowed are {allowed}"
    return f"setting {path}: {what}" if path else f"settings: {what}"


def _check(settings: Settings) -> None:
    if not is_loopback(settings.host):
        raise SettingsError(
            f"host = {settings.host!r}: only loopback addresses are allowed, because there are no keys yet"
        )
    if not re.fullmatch(r"[^\s/]+:\d{1,5}", settings.triton_grpc_url):
        raise SettingsError(f"triton_grpc_url = {settings.triton_grpc_url!r}: expected HOST:PORT")
    names = [model.name for model in settings.models]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"models: the name {name!r} is given twice")


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
