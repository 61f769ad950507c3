"""What a step of a replica holds, compiled: as the engine's scheduler plans it."""

from __future__ import annotations

import math

from simulator.fleet.compiling import compiled
from simulator.fleet.giving_way import make_way
from simulator.fleet.light import batch_beside_light, batch_within, fits_beside_one, tokens_in
from simulator.fleet.rules import (
    FEWEST_TOKENS,
    LEAST_SHARE,
    LEAST_STEP_TOKENS,
    LEAST_TIMES_BASE,
    PART_FOR_SHORT,
    SHARE,
)


@compiled
def limits(shape, target_s, running, kv_tokens):
    """`step_limits` of the engine: how many may run, and how many tokens a step may hold."""
    if target_s == math.inf:
        return shape.slots, shape.step_tokens
    allowed_s = SHARE * target_s
    decoding_s = allowed_s
    least_s = FEWEST_TOKENS * shape.prefill_s
    if least_s > (1.0 - SHARE) * target_s:
        decoding_s = min(allowed_s, max(target_s - least_s, target_s / (1.0 + LEAST_SHARE)))
    sequence_s = shape.decode_s + shape.kv_s * (kv_tokens / running if running else 0.0)
    batch = batch_within(shape, decoding_s, sequence_s, LEAST_TIMES_BASE)
    if not running:
        return batch, shape.step_tokens
    decode_s = shape.base_s + shape.decode_s * running + shape.kv_s * kv_tokens
    prompt = tokens_in(allowed_s - decode_s, shape.prefill_s, shape.step_tokens)
    quick = tokens_in(LEAST_SHARE * decode_s, shape.prefill_s, shape.step_tokens)
    prompt = max(prompt, min(LEAST_STEP_TOKENS, max(FEWEST_TOKENS, quick)))
    return batch, min(max(running + prompt, batch), shape.step_tokens)


@compiled
def _target_s(replica, shape):
    target_s = math.inf
    if replica.interactive:
        target_s = shape.inter_token_s[0]
    if replica.standard:
        target_s = min(target_s, shape.inter_token_s[1])
    if replica.batch:
        target_s = min(target_s, shape.inter_token_s[2])
    return target_s


@compiled
def _has_shorter(places, place, room, most):
    """Whether a short prompt of the same tier is behind this one in rank; it has nothing of the step yet."""
    tier = places[places[place].behind].tier
    for later in range(place + 1, room):
        other = places[places[later].behind]
        if other.tier != tier:
            return False
        if 1 < other.lacking <= most:
            return True
    return False


@compiled
def plan_step(engines, shape, row, now_s):
    """Hands out prompt tokens of the next step, as `handed_out` does; how many, their weight, what they read.

    Prompts behind long contexts are not cut smaller here; what they take in all is the same.
    """
    replica, places = engines.replicas[row], engines.slots[row]
    decoding = replica.decoding
    batch, budget = limits(shape, _target_s(replica, shape), decoding, replica.kv)
    sequences_s = shape.decode_s * decoding + shape.kv_s * replica.kv
    if not fits_beside_one(shape.base_s, sequences_s, decoding, replica.taken):
        batch = min(batch, batch_beside_light(engines, shape, row, now_s))
    replica.announced = batch
    room = max(batch - decoding, 0)
    if replica.behind > room:
        room += make_way(engines, row, batch, room)
        decoding = replica.decoding
    whole, kv, used = max(budget - decoding, 0), 0, replica.kv + decoding
    weight = 0.0
    left, room, part = whole, min(replica.behind, room), budget // PART_FOR_SHORT
    for place in range(room):
        if left <= 0:
            break
        request = places[places[place].behind]
        used += request.prompt + request.done
        if used > shape.kv_tokens and decoding + place:
            break
        given = min(left, request.lacking)
        if request.lacking > left and _has_shorter(places, place, room, part):
            given = max(left - part, 0)
        request.given = given
        start = request.prompt + request.done - request.lacking
        kv += start if given else 0
        weight += given * (1.0 + (start + given / 2) / shape.even_context)
        left -= given
    return whole - left, weight, kv
