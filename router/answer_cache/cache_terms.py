"""What a request's Cache-Control asks for, within what its tenant allows."""

from __future__ import annotations

from dataclasses import dataclass

_LONGEST_HEADER = 1024


@dataclass(frozen=True, slots=True)
class CacheTerms:
    """`max_age_s`: no older answer is wanted. Where it is `only_kept`, the model is not asked."""

    max_age_s: float
    only_kept: bool = False


def read_terms(header: str, allowed_s: float) -> CacheTerms | None:
    """None where the request wants no cache: it says nothing of one, says no-store, or cannot be understood.

    With no-cache the model is asked, and its answer is kept for those who come later.
    """
    if len(header) > _LONGEST_HEADER:
        return None
    directives = {}
    for part in header.lower().split(","):
        name, _, value = part.strip().partition("=")
        directives[name] = value.strip('"')
    if not allowed_s or "no-store" in directives:
        return None
    only_kept = "only-if-cached" in directives
    if "no-cache" in directives:
        return CacheTerms(0.0, only_kept)
    age = directives.get("max-age")
    if age is None:
        return CacheTerms(allowed_s, True) if only_kept else None
    if not (age.isascii() and age.isdigit()):
        return None
    return CacheTerms(float(min(int(age[:10]), allowed_s)), only_kept)
