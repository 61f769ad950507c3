"""Tells numbers of accounts, cards and machines from other numbers, by their check digits and ranges.

Each function takes what looks like one and tells how many of its characters are one, 0 where none are: what
follows a number in a sentence may look like more of it.
"""

from __future__ import annotations

import ipaddress

_CARD_DIGITS = range(13, 20)
_IBAN_CHARS = range(15, 35)


def card_chars(text: str) -> int:
    """Luhn's check, of the longest beginning that ends with a group of digits."""
    ends = [at + 1 for at, char in enumerate(text) if char.isdigit() and not text[at + 1 : at + 2].isdigit()]
    for end in reversed(ends):
        digits = [int(char) for char in text[:end] if char.isdigit()]
        if len(digits) in _CARD_DIGITS and len(set(digits)) > 1 and _passes_luhn(digits):
            return end
    return 0


def _passes_luhn(digits: list[int]) -> bool:
    doubled = (digit * 2 - 9 * (digit > 4) for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0


def iban_chars(text: str) -> int:
    """ISO 7064's check (the rest by 97 is 1), of the longest beginning that passes it."""
    ends = [at + 1 for at, char in enumerate(text) if char != " "]
    for count in range(min(len(ends), _IBAN_CHARS[-1]), _IBAN_CHARS[0] - 1, -1):
        compact = text[: ends[count - 1]].replace(" ", "")
        if int("".join(str(int(char, 36)) for char in compact[4:] + compact[:4])) % 97 == 1:
            return ends[count - 1]
    return 0


def ipv4_chars(text: str) -> int:
    return len(text) if all(int(part) < 256 for part in text.split(".")) else 0


def ipv6_chars(text: str) -> int:
    try:
        ipaddress.IPv6Address(text)
    except ValueError:
        return 0
    return len(text)
