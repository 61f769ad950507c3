"""What a router has in flight on each replica, compiled."""

from __future__ import annotations

from simulator.fleet.compiling import compiled
from simulator.fleet.rules import EXPECTED_TOKENS, LEAST_TOKENS


@compiled
def expected(output):
    """`answer_tokens` of the router: what it expects of an answer before it begins."""
    return max(min(output, EXPECTED_TOKENS), LEAST_TOKENS)


@compiled
def note(engines, row, slot):
    """A request is sent."""
    request = engines.slots[row, slot]
    tokens, view = request.prompt + expected(request.output), engines.views[request.router, row]
    view.tokens += tokens
    view.slots += 1
    _leave(view, request, tokens, 0.0)


@compiled
def answers(engines, row, slot):
    """Its first token is there. What is left of its answer falls evenly until the last one, however long."""
    request = engines.slots[row, slot]
    tokens = expected(request.output)
    falls = (tokens - LEAST_TOKENS) / (request.output - 1)
    left = tokens + falls * engines.replicas[row].step
    _leave(engines.views[request.router, row], request, left, falls)


@compiled
def forget(engines, row, slot):
    """The router no longer has it in flight."""
    request = engines.slots[row, slot]
    view = engines.views[request.router, row]
    view.tokens -= request.prompt + expected(request.output)
    view.slots -= 1
    _leave(view, request, 0.0, 0.0)
    if view.slots == 0:  # but for what rounding has left
        view.left = view.falls = 0.0


@compiled
def _leave(view, request, left, falls):
    view.left += left - request.left
    view.falls += falls - request.falls
    request.left, request.falls = left, falls
