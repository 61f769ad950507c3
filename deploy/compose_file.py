"""docker-compose.yml as Docker reads it: variables put in, `$$` a dollar."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docker-compose.yml"
EXAMPLE = ROOT / "deploy" / "compose" / "env.example"
VARIABLE = re.compile(r"\$(?:(?P<dollar>\$)|\{(?P<name>\w+)(?:(?P<how>:?-)(?P<default>[^}]*))?\})")


def compose(environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """With the variables of a user who changed nothing, unless others are given."""
    values = example_environment() if environment is None else environment
    whole: dict[str, Any] = interpolated(yaml.safe_load(FILE.read_text()), values)
    return whole


def interpolated(value: Any, environment: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        return VARIABLE.sub(lambda found: resolved(found, environment), value)
    if isinstance(value, list):
        return [interpolated(each, environment) for each in value]
    if isinstance(value, dict):
        return {key: interpolated(each, environment) for key, each in value.items()}
    return value


def resolved(found: re.Match[str], environment: Mapping[str, str]) -> str:
    if found["dollar"]:
        return "$"
    value = environment.get(found["name"])
    if found["how"] and (value is None or (found["how"] == ":-" and not value)):
        return found["default"]
    assert value is not None, f"{found['name']} has neither a value nor a default"
    return value


def example_environment() -> dict[str, str]:
    """With those that are there as comments, `#NAME=value`, which is what they are without it."""
    return dict(re.findall(r"^#?(\w+)=(.*)$", EXAMPLE.read_text(), re.MULTILINE))
