"""What the dispatcher lets in, when, and what it refuses: by values."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from python_backend.costs.batch_cost import BatchCost
from python_backend.costs.step_cost import StepCost
from python_backend.wire.tiers import Tier
from router.admission.capacity import Capacity
from router.admission.demand import Demand, EntryState, QueueEntry, Reason, Refused
from router.admission.dispatcher import Dispatcher
from router.admission.forecast import OutputLengths
from router.admission.judge import DispatchSettings
from router.admission.queue import EqualShares

COST = StepCost(10.0, 0.1, 0.25)
ENGINE = Capacity(1, 4, 4000, 16, step=COST)


@dataclass
class Answer:
    completion_tokens: int = 0


@dataclass(frozen=True)
class Limited:
    """Half of the slots for `small`."""

    def weight(self, tenant: str) -> float:
        return 1.0

    def slot_share(self, tenant: str) -> float:
        return 0.5 if tenant == "small" else 1.0


def dispatcher(capacity: Capacity = ENGINE, **settings: float) -> Dispatcher:
    made = Dispatcher(EqualShares(), OutputLengths(), DispatchSettings(**settings))  # type: ignore[arg-type]  # each by its name
    made.resize(capacity)
    return made


def tried(policy: Dispatcher) -> Dispatcher:
    """One whose forecasts came true often enough."""
    for turn in range(40):
        entry = placed(policy, demand(most=100, at_s=turn - 100.0))
        policy.hand_on(turn - 100.0)
        assert entry.forecast_s is not None
        policy.first_token(entry, turn - 100.0 + entry.forecast_s)
        entry.progress.completion_tokens = 100
        policy.end(entry, turn - 99.5)
    return policy


def demand(
    tenant: str = "a",
    tier: Tier = Tier.STANDARD,
    prompt: int = 100,
    most: int = 100,
    sequences: int = 1,
    at_s: float = 0.0,
    patience_s: float = 60.0,
) -> Demand:
    return Demand(tenant, tier, prompt, most, sequences, at_s, at_s + patience_s)


def placed(policy: Dispatcher, wanted: Demand) -> QueueEntry:
    answer = policy.offer(wanted, Answer(), wanted.arrived_s)
    assert isinstance(answer, QueueEntry)
    return answer


def refused(policy: Dispatcher, wanted: Demand) -> Refused:
    answer = policy.offer(wanted, Answer(), wanted.arrived_s)
    assert isinstance(answer, Refused)
    return answer


def test_what_fits_runs_at_once_and_the_rest_as_slots_become_free() -> None:
    policy = dispatcher()
    entries = [placed(policy, demand()) for _ in range(6)]
    assert policy.hand_on(0.0) == entries[:4]
    assert policy.hand_on(0.1) == []
    policy.end(entries[1], 1.0)
    assert policy.hand_on(1.0) == [entries[4]]
    policy.check()


def test_no_request_starts_before_the_capacity_is_known() -> None:
    policy = Dispatcher(EqualShares(), OutputLengths())
    entry = placed(policy, demand())
    assert policy.hand_on(0.0) == []
    policy.resize(ENGINE)
    assert policy.hand_on(0.0) == [entry]


def test_a_forecast_is_written_into_the_entry_and_its_first_token_judged_by_it() -> None:
    policy = dispatcher()
    entry = placed(policy, demand())
    assert entry.forecast_s == pytest.approx(0.02)
    assert entry.forecast_late_s == pytest.approx(0.026)
    policy.hand_on(0.0)
    policy.first_token(entry, 0.024)
    policy.first_token(entry, 9.0)
    assert entry.first_token_s == 0.024
    assert entry.was_covered


def test_a_request_whose_first_token_would_be_late_is_refused_with_a_retry_time() -> None:
    policy = tried(dispatcher())
    for _ in range(60):
        policy.offer(demand(most=100), Answer(), 0.0)
    policy.hand_on(0.0)
    refusal = refused(policy, demand(patience_s=1.0))
    assert refusal.reason is Reason.BUSY
    # 56 requests of about 10 + 100 * 2.75 ms wait before it.
    assert refusal.retry_after_s == pytest.approx(16, rel=0.3)


def test_no_request_is_refused_by_forecast_before_enough_samples() -> None:
    policy = dispatcher()
    for _ in range(60):
        policy.offer(demand(most=100), Answer(), 0.0)
    policy.hand_on(0.0)
    entry = placed(policy, demand(patience_s=1.0))
    assert entry in policy.hand_on(1.5)
    assert entry.refusal is not None
    assert entry.refusal.reason is Reason.TOO_LATE


def test_where_all_slots_are_gone_requests_are_taken_and_wait() -> None:
    policy = dispatcher(Capacity(1, 5))
    held = [placed(policy, demand("a")), placed(policy, demand("b", sequences=4))]
    assert policy.hand_on(0.0) == held
    policy.resize(Capacity(0, 0, batch=BatchCost(5.0, 0.5)))
    entry = placed(policy, demand("b", prompt=0, most=0))
    assert policy.hand_on(0.0) == []
    assert entry.state is EntryState.WAITING
    policy.check()


def test_a_tier_is_not_refused_for_the_backlog_of_other_tiers() -> None:
    policy = dispatcher()
    for _ in range(200):
        policy.offer(demand(tier=Tier.BATCH, patience_s=600.0), Answer(), 0.0)
    policy.hand_on(0.0)
    placed(policy, demand(tier=Tier.INTERACTIVE, patience_s=1.0))
    placed(policy, demand(tier=Tier.STANDARD, patience_s=1.0))


def test_a_deadline_is_checked_again_before_a_request_starts() -> None:
    policy = dispatcher(replace(ENGINE, step=None))
    running = [placed(policy, demand()) for _ in range(4)]
    waiting = placed(policy, demand(patience_s=2.0))
    patient = placed(policy, demand())
    assert policy.hand_on(0.0) == running
    policy.end(running[0], 3.0)
    assert policy.hand_on(3.0) == [waiting, patient]
    assert waiting.refusal is not None
    assert waiting.refusal.reason is Reason.TOO_LATE
    assert waiting.state is EntryState.ENDED
    assert patient.is_running


def test_who_times_out_is_told_when_it_is_lost_though_nothing_has_become_free() -> None:
    policy = dispatcher()
    for _ in range(4):
        placed(policy, demand())
    policy.hand_on(0.0)
    waiting = placed(policy, demand(patience_s=10.0))
    assert policy.hand_on(9.97) == []
    assert policy.hand_on(9.99) == [waiting]  # its prompt alone takes 20 ms
    assert waiting.refusal is not None


def test_a_long_prompts_own_prefill_time_extends_its_deadline_unless_the_client_set_one() -> None:
    policy = dispatcher(Capacity(1, 4, 100_000, 16, step=COST))
    long = demand(prompt=20_000, patience_s=1.0)
    entry = placed(policy, long)
    assert policy.hand_on(0.0) == [entry]
    strict = refused(tried(dispatcher(Capacity(1, 4, 100_000, 16, step=COST))), replace(long, is_strict=True))
    assert strict.reason is Reason.BUSY


@pytest.mark.parametrize(
    ("wanted", "figure"),
    [(demand(prompt=5000), "3600"), (demand(sequences=5, most=500), "4 slots")],
)
def test_a_request_that_would_not_fit_even_alone_is_too_large(wanted: Demand, figure: str) -> None:
    refusal = refused(dispatcher(), wanted)
    assert refusal.reason is Reason.TOO_LARGE
    assert figure in refusal.message
    assert refusal.retry_after_s is None


def test_a_high_limit_does_not_make_a_request_too_large_where_it_need_not_be_held() -> None:
    placed(dispatcher(), demand(most=100_000))
    whole = replace(ENGINE, holds_whole_answers=True)
    assert refused(dispatcher(whole), demand(most=100_000)).reason is Reason.TOO_LARGE


def test_rows_beyond_the_slots_of_a_batch_model_run_alone() -> None:
    policy = dispatcher(Capacity(1, 8, batch=BatchCost(4.0, 0.5)))
    small, wide = placed(policy, demand(most=0)), placed(policy, demand(most=0, sequences=50))
    assert policy.hand_on(0.0) == [small]
    policy.end(small, 0.01)
    assert policy.hand_on(0.01) == [wide]
    policy.end(wide, 0.05)
    assert wide.was_covered is not None


def test_at_most_nine_tenths_of_the_cache_is_reserved() -> None:
    policy = dispatcher(replace(ENGINE, slots=64, holds_whole_answers=True))
    entries = [placed(policy, demand(prompt=600, most=200)) for _ in range(6)]
    assert policy.hand_on(0.0) == entries[:4]  # 3,200 of 3,600
    signals = policy.signals(0.0)
    assert signals.kv_reserved_tokens == 3200
    assert signals.kv_budget_tokens == 3600


def test_an_answer_longer_than_predicted_takes_more_of_the_cache() -> None:
    policy = dispatcher(replace(ENGINE, slots=64))
    entry = placed(policy, demand(prompt=100, most=3000))
    policy.hand_on(0.0)
    before = policy.signals(0.0).kv_reserved_tokens
    entry.progress.completion_tokens = 2000
    placed(policy, demand())
    policy.hand_on(1.0)
    assert policy.signals(1.0).kv_reserved_tokens >= max(before, 2100)
    policy.check()


def test_a_large_request_that_does_not_fit_is_passed_over_for_a_while_and_then_waited_for() -> None:
    policy = dispatcher(replace(ENGINE, slots=64, holds_whole_answers=True))
    first = placed(policy, demand("b", prompt=1500, most=100))
    second = placed(policy, demand("b", prompt=1500, most=100))
    policy.hand_on(0.0)
    large = placed(policy, demand("a", prompt=3000, most=100))
    small = placed(policy, demand("a", prompt=100, most=100))
    assert policy.hand_on(0.1) == [small]
    late = placed(policy, demand("c", prompt=100, most=100))
    assert policy.hand_on(0.5) == [], "from now on what becomes free is kept for it"
    policy.end(first, 1.0)
    assert policy.hand_on(1.0) == []
    better = placed(policy, demand("d", Tier.INTERACTIVE, prompt=100, most=100, at_s=1.0))
    assert policy.hand_on(1.0) == [better]
    for entry in (second, small, better):
        policy.end(entry, 2.0)
    assert policy.hand_on(2.0) == [large]
    policy.end(large, 3.0)
    assert policy.hand_on(3.0) == [late]


def test_a_worse_tier_may_borrow_all_but_the_last_of_the_slots_while_a_better_one_is_about() -> None:
    capacity = Capacity(1, 20)
    policy = dispatcher(capacity)
    policy.end(placed(policy, demand(tier=Tier.INTERACTIVE)), 0.0)
    for _ in range(30):
        placed(policy, demand(tier=Tier.BATCH, patience_s=600.0))
    assert len(policy.hand_on(0.0)) == 17
    better = [placed(policy, demand(tier=Tier.INTERACTIVE)) for _ in range(3)]
    assert policy.hand_on(0.1) == better
    alone = dispatcher(capacity)
    for _ in range(30):
        placed(alone, demand(tier=Tier.BATCH, patience_s=600.0))
    assert len(alone.hand_on(0.0)) == 20, "nothing is kept for those who never come"


def test_a_tenant_has_no_more_slots_than_its_plan_says() -> None:
    policy = Dispatcher(Limited(), OutputLengths())
    policy.resize(ENGINE)
    small = [placed(policy, demand("small")) for _ in range(4)]
    other = placed(policy, demand("other"))
    assert policy.hand_on(0.0) == [small[0], other, small[1]]
    policy.end(small[0], 1.0)
    assert policy.hand_on(1.0) == [small[2]]
    wide = Dispatcher(Limited(), OutputLengths())
    wide.resize(ENGINE)
    entry = placed(wide, demand("small", sequences=3))
    assert wide.hand_on(0.0) == [entry], "one request it may always have"


def test_the_queue_is_bounded_and_a_flood_fills_its_part_before_other_tenants_are_refused() -> None:
    policy = dispatcher(replace(ENGINE, step=None), most_waiting=10)
    for _ in range(14):
        placed(policy, demand("flood"))
        policy.hand_on(0.0)
    assert refused(policy, demand("flood")).reason is Reason.BUSY
    placed(policy, demand("calm"))


def test_the_dispatcher_forgets_idle_tenants() -> None:
    policy = dispatcher()
    for number in range(6000):
        entry = placed(policy, demand(f"t{number}", at_s=float(number)))
        policy.hand_on(float(number))
        policy.end(entry, number + 0.5)
    policy.check()
    assert sum(len(lane.tenants) for lane in policy._queue.lanes) <= 4096
    assert len(policy._deadlines) <= 70


def test_signals_show_the_drain_time_and_the_share_of_requests_at_risk() -> None:
    policy = dispatcher()
    for _ in range(40):
        policy.offer(demand(patience_s=2.0), Answer(), 0.0)
    policy.hand_on(0.0)
    signals = policy.signals(0.0)
    assert signals.running == 4
    assert signals.drain_s == pytest.approx((4 + signals.waiting[Tier.STANDARD]) * 0.285, rel=0.05)
    assert signals.risk[Tier.STANDARD] > 0.5
    assert signals.risk[Tier.BATCH] == 0.0
    assert signals.load is not None
    assert signals.load.offered > 0
    assert signals.load.risk == signals.risk[Tier.STANDARD]


def test_what_began_before_costs_were_known_is_priced_when_they_are() -> None:
    before, after = dispatcher(replace(ENGINE, step=None)), dispatcher()
    for policy in (before, after):
        for _ in range(4):
            placed(policy, demand())
        policy.hand_on(0.0)
    before.resize(ENGINE)
    before.check()
    assert before.signals(0.0).drain_s == pytest.approx(after.signals(0.0).drain_s, rel=0.1)


def test_the_first_crowd_is_not_sent_away_for_what_a_few_before_it_have_cost() -> None:
    """What its own first steps took, held up by its arrival, makes the others of it look too dear."""
    engine = Capacity(1, 256, 600_000, 16, step_tokens=8192, step=StepCost(7.0, 0.02, 0.07))
    policy = dispatcher(engine)
    for turn in range(11):
        alone = placed(policy, demand(prompt=512, most=256, at_s=turn * 3.0))
        policy.hand_on(turn * 3.0)
        policy.first_token(alone, turn * 3.0 + 0.03)
        policy.end(alone, turn * 3.0 + 2.0)
    crowd = []
    for number in range(256):
        if number == 240:
            policy.resize(replace(engine, step=StepCost(7.0, 1.0, 0.07)))
        crowd.append(policy.admit(demand(prompt=512, most=256, at_s=40.0), Answer(), 40.0))
        policy.hand_on(40.0)
    assert all(isinstance(each, QueueEntry) and each.is_running for each in crowd)
    policy.check()


def test_before_forecasts_are_tried_a_deadline_itself_still_counts() -> None:
    policy = dispatcher()
    entries = [placed(policy, demand(patience_s=2.0)) for _ in range(5)]
    policy.hand_on(0.0)
    policy.end(entries[0], 3.0)
    assert policy.hand_on(3.0) == [entries[4]]
    refusal = entries[4].refusal
    assert refusal is not None
    assert refusal.reason is Reason.TOO_LATE


def test_of_an_answer_in_several_sequences_the_length_of_each_is_learned_at_its_own_limit() -> None:
    lengths = OutputLengths()
    policy = Dispatcher(EqualShares(), lengths)
    policy.resize(ENGINE)
    for _ in range(20):
        lengths.learn("a", 400, 300)
        entry = policy.offer(demand(most=400, sequences=4), Answer(completion_tokens=160), 0.0)
        assert isinstance(entry, QueueEntry)
        policy.hand_on(0.0)
        policy.end(entry, 1.0)
    assert 40 <= lengths.expect("a", 100).p90 <= 50
    assert 300 <= lengths.expect("a", 400).p50 <= 375
