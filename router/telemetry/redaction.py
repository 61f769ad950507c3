"""Takes secrets and personal data out of text, in time that grows with its length alone.

Every pattern begins where a run of its characters begins, which a look behind makes sure of, so that no
character is looked at more than a few times whatever the text is made of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import ahocorasick  # type: ignore[import-not-found]  # it ships no types
import regex

from router.telemetry.number_patterns import card_chars, iban_chars, ipv4_chars, ipv6_chars

if TYPE_CHECKING:
    from collections.abc import Callable


class _Kind(NamedTuple):
    """Something to be taken out, looked for only where one of the needles, in small letters, is in the text.

    The group `begins` stays; `judge` tells how many characters of a match are really of this kind.
    """

    label: str
    needles: tuple[str, ...]
    pattern: regex.Pattern[str]
    judge: Callable[[str], int] | None = None


def _kind(label: str, needles: str, pattern: str, judge: Callable[[str], int] | None = None) -> _Kind:
    return _Kind(label, tuple(needles.split()), regex.compile(pattern, regex.DOTALL), judge)


_TOKEN = "[A-Za-z0-9_-]"
_ALONE = "(?<![A-Za-z0-9])"
_SECRETS = (
    _kind(
        "private key",
        "-----begin",
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|\Z)",
    ),
    _kind("url password", "://", r"(?P<begins>://[^\s/:@]*:)(?!\[redacted)[^\s/]+(?=@)"),
    _kind("token", "eyj", rf"(?<!{_TOKEN})eyJ{_TOKEN}{{5,}}\.{_TOKEN}{{5,}}(?:\.{_TOKEN}*)?"),
    _kind("key", "ik-", rf"{_ALONE}ik-[0-9A-Za-z]{{8}}-[0-9A-Za-z]{{8,}}"),
    _kind("key", "sk- pk-", rf"{_ALONE}[sp]k-{_TOKEN}{{16,}}"),
    _kind("key", "sk_ rk_ pk_", rf"{_ALONE}[srp]k_(?:live|test)_[A-Za-z0-9]{{10,}}"),
    _kind("key", "akia asia abia acca", rf"{_ALONE}(?:AKIA|ASIA|ABIA|ACCA)[0-9A-Z]{{16}}"),
    _kind(
        "token",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        rf"{_ALONE}(?:gh[pousr]_[A-Za-z0-9]{{20,}}|github_pat_[A-Za-z0-9_]{{20,}})",
    ),
    _kind("token", "glpat- npm_ hf_", rf"{_ALONE}(?:glpat-|npm_|hf_){_TOKEN}{{16,}}"),
    _kind("token", "xox xapp-", rf"{_ALONE}(?:xox[a-z]|xapp)-[A-Za-z0-9-]{{10,}}"),
    _kind("url", "hooks.slack.com", r"(?P<begins>hooks\.slack\.com/services/)[A-Za-z0-9/]{8,}"),
    _kind("key", "aiza gocspx-", rf"{_ALONE}(?:AIza{_TOKEN}{{30,}}|GOCSPX-{_TOKEN}{{20,}})"),
    _kind("token", "ya29.", rf"{_ALONE}ya29\.{_TOKEN}{{20,}}"),
    _kind("key", "sg.", rf"{_ALONE}SG\.{_TOKEN}{{16,}}\.{_TOKEN}{{16,}}"),
    _kind("token", "bearer", r"(?P<begins>(?<!\w)(?i:bearer)\s{1,8})(?!\[redacted)[\w.~+/=-]{6,}"),
    _kind("token", "authorization", r"(?P<begins>(?i:authorization)\W{1,8}(?i:basic)\s{1,8})[\w+/=-]{4,}"),
    _kind(
        "secret",
        "passw passphrase pwd secret api_key api-key apikey access_key access-key accesskey"
        " access_token access-token auth_token auth-token refresh_token refresh-token id_token id-token",
        r"(?P<begins>(?i:passwor[dt]|passwd|passphrase|pwd|secret|api[_-]?key|(?:access|secret)[_-]?key"
        r"|(?:access|auth|refresh|id)[_-]token|client[_-]secret)[\"']?\s{0,8}[=:]\s{0,8}[\"']?)"
        r"(?!\[redacted)[^\s\"',;&]{4,}",
    ),
)
_NEEDLES = ahocorasick.Automaton()
for _number, _each in enumerate(_SECRETS):
    for _needle in _each.needles:
        _NEEDLES.add_word(_needle, _number)
_NEEDLES.make_automaton()
_LONGEST_NEEDLE = max(len(needle) for each in _SECRETS for needle in each.needles)
# Cheap to ask first: most lines have no run of digits that could be a number of anybody.
_DIGITS = regex.compile(r"\d[\d ()./-]{5,}\d")
_IBAN_START = regex.compile(r"[A-Z][A-Z]\d\d")
_LONG_CHARS = 1 << 14
_NUMBERS = (
    _kind("iban", "", r"(?<![A-Za-z0-9])[A-Z]{2}\d\d(?:[ ]?[A-Z0-9]){11,30}", iban_chars),
    _kind("card", "", r"(?<![\w.])[2-6]\d{3}(?:[ -]?\d){9,15}(?!\d)", card_chars),
    _kind("id number", "", r"(?<![\w-])\d{3}-\d{2}-\d{4}(?![\w-])"),
    _kind(
        "phone",
        "",
        r"(?<![\w+])(?:(?:\+|00)[1-9]\d{0,2}(?:[ ./-]{0,2}\(?\d{1,5}\)?){2,6}"
        r"|\(\d{2,5}\)[ ./-]?\d{2,5}(?:[ ./-]\d{2,6}){1,3}|\d{3}([ .-])\d{3}\1\d{4}"
        r"|0\d{2,4}[ /-]\d{3,9}(?:[ -]\d{1,6}){0,3})(?!\w)",
    ),
)
_EMAIL = _kind("email", "@", r"(?<![\w.%+-])[\w.%+-]+@[\w-]+(?:\.[\w-]+)+")
_ADDRESSES = (
    _kind(
        "address",
        ":",
        r"(?<![\w:.])(?:[0-9A-Fa-f]{0,4}:){2,7}(?:(?:\d{1,3}\.){3}\d{1,3}|[0-9A-Fa-f]{1,4})?(?![\w:])",
        ipv6_chars,
    ),
    _kind("address", "", r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.]*\w)", ipv4_chars),
)


def redact(text: str, addresses: bool = False) -> str:
    """The text with `[redacted KIND]` in place of keys, tokens, passwords, e-mail addresses and numbers of
    people, accounts and cards; IP addresses too where that is asked for."""
    for number in sorted(_kinds_in(text.lower())):
        text = _without(_SECRETS[number], text)
    if "@" in text:
        text = _without(_EMAIL, text)
    is_long = _is_long(text)
    if _DIGITS.search(text, concurrent=is_long) or _IBAN_START.search(text, concurrent=is_long):
        for kind in _NUMBERS:
            text = _without(kind, text)
    if addresses:
        for kind in _ADDRESSES:
            text = _without(kind, text)
    return text


def _kinds_in(lowered: str) -> set[int]:
    """Those of which there is a needle; a window at a time, so that others may run in between."""
    found: set[int] = set()
    for start in range(0, len(lowered), _LONG_CHARS):
        end = min(start + _LONG_CHARS + _LONGEST_NEEDLE, len(lowered))
        found.update(number for _, number in _NEEDLES.iter(lowered, start, end))
    return found


def _is_long(text: str) -> bool:
    """Whether a search leaves the interpreter to others meanwhile."""
    return len(text) > _LONG_CHARS


def _without(kind: _Kind, text: str) -> str:
    mark = f"[redacted {kind.label}]"
    if kind.judge is not None:
        return _without_judged(kind.pattern, kind.judge, mark, text)
    kept = r"\g<begins>" if "begins" in kind.pattern.groupindex else ""
    return kind.pattern.sub(kept + mark, text, concurrent=_is_long(text))


def _without_judged(pattern: regex.Pattern[str], judge: Callable[[str], int], mark: str, text: str) -> str:
    """Goes on right behind what was taken out, and one character on where it was something else."""
    pieces = []
    done = at = 0
    while found := pattern.search(text, at, concurrent=_is_long(text)):
        chars = judge(found[0])
        at = found.start() + (chars or 1)
        if chars:
            pieces += [text[done : found.start()], mark]
            done = at
    return "".join([*pieces, text[done:]])
