"""The numbers of the rules that are compiled here: each is that of the code that serves."""

from __future__ import annotations

from python_backend.engine.scheduling import budget, pace
from python_backend.sharing import places
from python_backend.wire.tiers import Tier
from router.admission import allocation
from router.admission.judge import SERVED_WITH
from router.routing.replica_choice import EXPECTED_TOKENS as EXPECTED_TOKENS
from router.routing.replica_choice import LEAST_TOKENS as LEAST_TOKENS

# Of the engine's steps.
SHARE, LEAST_SHARE = budget.SHARE, budget.LEAST_SHARE
FEWEST_TOKENS, LEAST_STEP_TOKENS = budget.FEWEST_TOKENS, budget.LEAST_STEP_TOKENS
LEAST_BATCH_SHARE, LEAST_TIMES_BASE = budget.LEAST_BATCH_SHARE, budget.LEAST_TIMES_BASE
PART_FOR_SHORT = budget.PART_FOR_SHORT
# Beside tenants that have little.
STRETCH, STEP_STRETCH = pace.STRETCH, pace.STEP_STRETCH
LIGHT_LEAST_TIMES_BASE, LIGHT_REMEMBERED_S = pace.LIGHT_LEAST_TIMES_BASE, pace.REMEMBERED_S
# Of the router.
GUARANTEES = tuple(places.GUARANTEES[tier] for tier in Tier)
CACHE_SHARE, BORROW_CAP = SERVED_WITH.kv_share, SERVED_WITH.borrow_cap
ALONE_TIMES, PASS_S = SERVED_WITH.stretch, SERVED_WITH.pass_s
URGENT_S, PATIENT_PART = allocation.URGENT_S, allocation.PATIENT_PART
TIER_REMEMBERED_S = allocation.REMEMBERED_S
