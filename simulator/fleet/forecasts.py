"""What a request takes, and when its first token would come, compiled."""

from __future__ import annotations

from simulator.fleet.compiling import compiled
from simulator.fleet.shares import given_out
from simulator.fleet.state import ALL, ENDS_PER_S, ENDS_S
from simulator.fleet.turns import tenants_of


@compiled
def service_s(replica, shape, prompt):
    """From now to the first token on a replica: what lies before it, in steps of a full budget."""
    tokens = replica.lacking + (1 if shape.is_prefilled else prompt)
    beside_s = shape.base_s + shape.decode_s * replica.decoding + shape.kv_s * replica.kv
    budget = max(shape.step_tokens - replica.decoding, 64)
    return tokens * shape.prefill_s + (tokens / budget + 1.5) * beside_s + shape.overhead_s


@compiled
def alone_s(shape, prompt):
    return prompt * shape.prefill_s + shape.base_s + shape.overhead_s


@compiled
def price_s(shape, prompt, output):
    """Engine time of a request beside a batch of half the slots."""
    read_s = shape.kv_s * (prompt + output / 2)
    prefill_s = 0.0 if shape.is_prefilled else prompt * shape.prefill_s
    return prefill_s + output * (2.0 * shape.base_s / shape.slots + shape.decode_s + read_s)


@compiled
def wait_s(cell, tier, lane, need):
    """Until its turn comes and there is room, by how many answers end in a second.

    Before it are those that wait, by their weights; and where cache is lacking, as many have to end as hold
    what it needs of it.
    """
    queue, tenants = cell.queue, tenants_of(cell.queue)
    weights = queue.tiers[tier].weight
    for other in range(len(queue.tiers)):
        if other != tier and queue.tiers[other].waiting:
            weights += queue.tiers[other].weight
    before = queue.tiers[tier].waiting
    if before and tenants > 1:
        active = 1
        for other in range(tier * tenants, (tier + 1) * tenants):
            active += other != lane and queue.lanes[other].waiting > 0
        before = min(before, (queue.lanes[lane].waiting + 1) * active)
    everybody, ends = cell.engines.tiers[ALL], 1.0
    if everybody.taken and everybody.held + need > given_out(cell):
        ends = max(need * everybody.taken / everybody.held, 1.0)
    ends_per_s = max(cell.clock[ENDS_PER_S] / ENDS_S, 0.1)
    return (before * weights / queue.tiers[tier].weight + ends) / ends_per_s
