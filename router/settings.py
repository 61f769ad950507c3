"""What the router is told at start: one TOML file and one secret from the environment."""

from __future__ import annotations

import ipaddress
import os
import re
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SECRET_VARIABLE = "INFLIGHT_TRITON_SECRET"
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


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything the router needs to start."""

    triton_grpc_url: str
    models: Annotated[tuple[ModelSettings, ...], Meta(min_length=1)]
    triton_metrics_url: str = ""
    host: str = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 8080
    drain_timeout_s: Annotated[float, Meta(ge=0)] = 30.0
    max_body_bytes: Annotated[int, Meta(ge=1024, le=64 << 20)] = 1 << 20
    stop_timeout_s: Annotated[float, Meta(gt=0)] = 5.0
    triton_secret: str = ""


def load(path: Path, environment: Mapping[str, str] = os.environ) -> Settings:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SettingsError(f"cannot read the settings file {path}: {error.strerror}") from error
    return parse(text, environment)


def parse(text: str, environment: Mapping[str, str]) -> Settings:
    try:
        values: dict[str, Any] = msgspec.toml.decode(text)
    except msgspec.DecodeError as error:
        raise SettingsError(f"the settings file is not valid TOML: {error}") from error
    if "triton_secret" in values:
        raise SettingsError(f"triton_secret does not belong in the file: set {SECRET_VARIABLE}")
    values["triton_secret"] = environment.get(SECRET_VARIABLE, "")
    try:
        settings = msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(_describe(str(error))) from error
    _check(settings)
    return settings


def _describe(problem: str) -> str:
    what, _, where = problem.partition(" - at `$")
    path = where.rstrip("`").lstrip(".")
    if "unknown field" in what:
        kind: type[msgspec.Struct] = ModelSettings if path.startswith("models") else Settings
        allowed = ", ".join(name for name in kind.__struct_fields__ if name != "triton_secret")
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
