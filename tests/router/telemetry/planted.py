"""Secrets and personal data of every kind that is taken out, made up anew for each number."""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Callable

from router.tenants import keys

_ALNUM = string.ascii_letters + string.digits


def planted(count: int = 200) -> list[str]:
    chance = random.Random(32)
    return [_KINDS[number % len(_KINDS)](chance) for number in range(count)]


def _text(chance: random.Random, chars: int, alphabet: str = _ALNUM) -> str:
    return "".join(chance.choice(alphabet) for _ in range(chars))


def _own_key(chance: random.Random) -> str:
    return keys.mint()[0]


def _card(chance: random.Random) -> str:
    digits = [4, *(chance.randrange(10) for _ in range(14))]
    doubled = [digit * 2 - 9 * (digit > 4) for digit in digits[::2]]
    digits.append(-(sum(doubled) + sum(digits[1::2])) % 10)
    text = "".join(map(str, digits))
    return chance.choice([text, " ".join(text[at : at + 4] for at in range(0, 16, 4))])


def _iban(chance: random.Random) -> str:
    account = _text(chance, 18, string.digits)
    check = 98 - int(account + "131400") % 97
    text = f"DE{check:02}{account}"
    return chance.choice([text, " ".join(text[at : at + 4] for at in range(0, 22, 4))])


def _token(chance: random.Random) -> str:
    parts = ['{"alg":"HS256"}', f'{{"sub":"{_text(chance, 12)}"}}', _text(chance, 24)]
    return ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)


def _private_key(chance: random.Random) -> str:
    return f"-----BEGIN RSA PRIVATE KEY-----\n{_text(chance, 64)}\n-----END RSA PRIVATE KEY-----"


_KINDS: list[Callable[[random.Random], str]] = [
    _own_key,
    _card,
    _iban,
    _token,
    _private_key,
    lambda chance: f"sk-proj-{_text(chance, 40)}",
    lambda chance: f"AKIA{_text(chance, 16, string.ascii_uppercase + string.digits)}",
    lambda chance: f"ghp_{_text(chance, 36)}",
    lambda chance: f"github_pat_{_text(chance, 40)}",
    lambda chance: f"xoxb-{_text(chance, 12, string.digits)}-{_text(chance, 24)}",
    lambda chance: f"AIza{_text(chance, 35)}",
    lambda chance: f"postgresql://ann:{_text(chance, 16)}@db.internal/tenants",
    lambda chance: f"Bearer {_text(chance, 32)}",
    lambda chance: f"password={_text(chance, 14)}",
    lambda chance: f"{_text(chance, 10)}@{_text(chance, 8)}.example.org",
    lambda chance: f"+49 30 {_text(chance, 8, string.digits)}",
    lambda chance: (
        f"({_text(chance, 3, '23456789')}) {_text(chance, 3, '234')}-{_text(chance, 4, string.digits)}"
    ),
    lambda chance: f"{_text(chance, 3, '12345')}-{_text(chance, 2, '12345')}-{_text(chance, 4, '12345')}",
]


def heart_of(secret: str) -> str:
    """The part that must not be seen: a URL may still show its host, and a header its scheme."""
    for start, end in (("ann:", "@"), ("Bearer ", ""), ("password=", ""), ("-----\n", "\n")):
        if start in secret:
            rest = secret.partition(start)[2]
            return rest.partition(end)[0] if end else rest
    return secret
