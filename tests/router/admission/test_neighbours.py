"""The tenant that floods is named, and nobody else."""

from __future__ import annotations

from router.admission.judge import Neighbours, NoisyTenant


def played(
    offers: dict[str, int], begun_us: int, lasting_s: int, waits: list[str], start_s: float = 0.0
) -> Neighbours:
    neighbours = Neighbours()
    play(neighbours, offers, begun_us, lasting_s, waits, start_s)
    return neighbours


def play(
    neighbours: Neighbours,
    offers: dict[str, int],
    begun_us: int,
    lasting_s: int,
    waits: list[str],
    start_s: float,
) -> NoisyTenant | None:
    noisy = None
    for second in range(lasting_s):
        now_s = start_s + second
        for tenant, cost_us in offers.items():
            neighbours.offered(tenant, 1.0, cost_us, now_s)
        for tenant in waits:
            neighbours.waits(tenant, now_s)
        neighbours.begun(begun_us, now_s)
        noisy = neighbours.noisy(now_s)
    return noisy


def test_a_tenant_asking_three_times_the_capacity_while_another_waits_is_noisy() -> None:
    neighbours = played({"flood": 3_000_000, "calm": 200_000}, 1_000_000, 30, ["calm"])
    noisy = neighbours.noisy(30.0)
    assert noisy is not None
    assert noisy.tenant == "flood"
    assert noisy.share > 0.9
    assert 5 < noisy.times_over < 7


def test_a_large_tenant_is_not_noisy_while_no_other_tenant_waits() -> None:
    assert played({"large": 3_000_000, "calm": 200_000}, 1_000_000, 30, ["large"]).noisy(30.0) is None


def test_no_tenant_is_noisy_where_all_ask_for_too_much_alike() -> None:
    offers = {f"t{number}": 1_000_000 for number in range(5)}
    assert played(offers, 1_000_000, 30, ["t0", "t1"]).noisy(30.0) is None


def test_a_noisy_spell_ends_only_well_below_its_threshold_and_keeps_its_start() -> None:
    neighbours = Neighbours()
    first = play(neighbours, {"flood": 3_000_000, "calm": 200_000}, 1_000_000, 30, ["calm"], 0.0)
    assert first is not None
    less = play(neighbours, {"flood": 900_000, "calm": 700_000}, 1_000_000, 60, ["calm"], 30.0)
    assert less is not None, "1.8 times its share: it would not begin there, but has not ended either"
    assert less.since_s == first.since_s
    assert play(neighbours, {"flood": 500_000, "calm": 700_000}, 1_000_000, 60, ["calm"], 90.0) is None


def test_any_number_of_tenants_takes_bounded_memory() -> None:
    neighbours = Neighbours()
    for number in range(50_000):
        neighbours.offered(f"t{number}", 1.0, 10, number / 1000)
    assert sum(len(bucket.offered_us) for bucket in neighbours._buckets) <= 6 * 257
