"""What must hold after every fault, as a sheet of invariants: values in, violations out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from loadtest.results import RequestResult

_SHOWN = 40  # characters of an answer that is wrong
# The store, gRPC and Redis keep a few at hand.
SPARE_FILES = 16


@dataclass(frozen=True, slots=True)
class Condition:
    """What a stack at rest holds; `left_regions` may be there on top for model processes that were killed,
    which Triton keeps until it ends."""

    processes: Mapping[str, int]
    stopped: int = 0
    files: Mapping[str, int] = field(default_factory=dict)
    regions: int = 0
    left_regions: int = 0
    in_flight: float = 0.0
    used_blocks: float = 0.0
    replicas_up: float = 0.0
    spool_files: int = 0


@dataclass(frozen=True, slots=True)
class Money:
    """Completion tokens by request as they were billed, and what was spent of the budget that there is."""

    billed: Mapping[str, int]
    spent: int = 0
    budget: int | None = None
    most_reserved: int = 0


def is_turned_away(result: RequestResult) -> bool:
    """Refused before it was accepted: by a limit, a budget, or because nobody can take it at the moment."""
    return result.status in (402, 429, 503)


def of_answers(results: Sequence[RequestResult], texts: Mapping[str, str], may_cut: bool) -> Iterator[str]:
    """Every accepted request ended once, without a gap or a repeat."""
    for result in results:
        expected = texts.get(result.kind, "")
        name = result.request_id or f"a request at {result.at_s:.1f} s"
        if result.has_left:
            yield f"{name} never ended"
        elif not expected.startswith(result.text):
            at = _same(expected, result.text)
            told, wanted = result.text[at : at + _SHOWN], expected[at : at + _SHOWN]
            yield (
                f"{name} got another text than without faults, or one with a gap or a repeat: {told!r} for "
                f"{wanted!r} after {at} characters"
            )
        elif result.is_answered and result.text != expected:
            yield (
                f"{name} ended after {len(result.text)} of {len(expected)} characters as if it were complete"
            )
        elif result.has_failed and not is_turned_away(result) and not may_cut:
            yield f"{name} failed: {result.error or f'{result.completion_tokens} tokens'}"


def of_kept(results: Sequence[RequestResult], keeper: str) -> Iterator[str]:
    """Who asks with a key and insists has all of the answer in the end, whatever happened meanwhile."""
    for result in results:
        if result.tenant == keeper and not result.is_answered:
            name = result.request_id or f"a request with a key at {result.at_s:.1f} s"
            yield f"{name} was incomplete in the end: {result.error or 'no answer'}"


def _same(one: str, other: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((place for place, (here, there) in pairs if here != there), min(len(one), len(other)))


def silence_s(result: RequestResult) -> float:
    """The longest time in which nothing was heard of it."""
    return max(result.first_token_s or 0.0, result.longest_gap_s)


def of_waits(results: Sequence[RequestResult], flooding: str, limit_s: float) -> Iterator[str]:
    """Nobody but who floods waits longer than the limit for the next token."""
    longest = max((each for each in results if each.tenant != flooding), key=silence_s, default=None)
    if longest is not None and silence_s(longest) > limit_s:
        yield f"{longest.request_id} received nothing for {silence_s(longest):.0f} s"


def of_money(results: Sequence[RequestResult], money: Money, may_cut: bool) -> Iterator[str]:
    """What clients were told is what was billed, once; nobody is billed for what nobody asked."""
    known = {result.request_id for result in results}
    for result in results:
        billed = money.billed.get(result.request_id)
        if result.is_answered and billed != result.completion_tokens:
            yield f"{result.request_id} received {result.completion_tokens} tokens and was billed {billed}"
        elif is_turned_away(result) and billed:
            yield f"{result.request_id} was refused and billed {billed} tokens"
        elif billed is not None and billed < result.pieces:
            yield f"{result.request_id} was sent {result.pieces} pieces and billed {billed} tokens"
    strangers = [each for each in money.billed if each not in known]
    if strangers and not may_cut:
        yield f"{len(strangers)} requests were billed that no client sent, such as {strangers[0]}"
    if money.budget is not None and money.spent > money.budget + money.most_reserved:
        yield f"{money.spent} was spent of a budget of {money.budget}"


def of_condition(before: Condition, now: Condition) -> Iterator[str]:
    """Nothing is left behind, and everything is there again."""
    for kind in before.processes.keys() | now.processes.keys():
        was, there = before.processes.get(kind, 0), now.processes.get(kind, 0)
        if was != there:
            yield f"there are {there} processes of {kind}, before there were {was}"
    if now.stopped:
        yield f"{now.stopped} processes are stopped"
    for name, files in now.files.items():
        if files > before.files.get(name, files) + SPARE_FILES:
            yield f"{name} has {files} files and sockets open, before it had {before.files[name]}"
    if now.regions > before.regions + now.left_regions:
        yield f"there are {now.regions} regions of shared memory, before there were {before.regions}"
    if now.in_flight:
        yield f"{now.in_flight:g} requests are still held by routers"
    if now.used_blocks:
        yield f"{now.used_blocks:g} blocks of the KV cache are still in use"
    if now.replicas_up < before.replicas_up:
        yield f"{now.replicas_up:g} replicas are up, before {before.replicas_up:g} were"
    if now.spool_files > before.spool_files + len(before.files):
        yield f"{now.spool_files} files of usage records wait to be delivered"
