"""The file of rules: what may be written in it, and what is refused by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from router.settings import SettingsError

if TYPE_CHECKING:
    from pathlib import Path

MAX_TERM_CHARS = 256
MAX_PATTERN_CHARS = 512


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One rule. Its name is told to the client; terms and pattern never are."""

    name: Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}$")]
    terms: tuple[Annotated[str, Meta(min_length=1, max_length=MAX_TERM_CHARS)], ...] = ()
    pattern: Annotated[str, Meta(max_length=1000)] = ""
    max_chars: Annotated[int, Meta(ge=0, le=MAX_PATTERN_CHARS)] = 0
    whole_words: bool = True
    applies_to: Literal["both", "prompt", "answer"] = "both"


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    rules: Annotated[tuple[Rule, ...], Meta(min_length=1)]
    homoglyphs: bool = False


def load_rules(path: Path) -> Rules:
    try:
        rules = msgspec.toml.decode(path.read_bytes(), type=Rules)
    except OSError as error:
        raise SettingsError(f"safety_rules: cannot read {path}: {error.strerror}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"safety_rules: {path}: {error}") from error
    for rule in rules.rules:
        if not rule.terms and not rule.pattern:
            raise SettingsError(f"safety_rules: {rule.name}: expected terms, a pattern or both")
        if bool(rule.pattern) != bool(rule.max_chars):
            raise SettingsError(
                f"safety_rules: {rule.name}: pattern and max_chars, the length of its longest match "
                f"(1 to {MAX_PATTERN_CHARS}), are given together"
            )
    return rules
