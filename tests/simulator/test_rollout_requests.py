"""What is simulated for many requests at once is what a router counts of them one by one."""

from __future__ import annotations

from dataclasses import astuple, fields, replace

import numpy as np
import pytest

from router.control.releases.arm_stats import ArmStats, Sample
from router.control.releases.evidence import Proportion, Spread
from router.control.releases.sums import Stretches
from simulator.rollout_requests import Phases, Requests, counted, counted_pairs


def requests(seed: int, count: int = 300, most_s: float = 50.0) -> Requests:
    chance = np.random.default_rng(seed)
    return Requests(
        np.sort(1e9 + most_s * chance.random(count)),
        chance.random(count) < 0.1,
        chance.lognormal(-2, 0.5, count),
        chance.lognormal(-4, 0.5, count),
        np.floor(chance.lognormal(4, 0.8, count)) + 1,
        chance.random(count) < 0.2,
    )


def samples(made: Requests) -> list[Sample]:
    rows = zip(*(getattr(made, each.name).tolist() for each in fields(made)), strict=True)
    return [
        Sample(True, at_s=at_s) if failed else Sample(False, first_s, between_s, int(tokens), refused, at_s)
        for at_s, failed, first_s, between_s, tokens, refused in rows
    ]


def assert_same(one: object, other: object) -> None:
    if isinstance(one, Proportion | int):
        assert one == other
    elif isinstance(one, Spread) and isinstance(other, Spread):
        moments, expected = (astuple(each) for each in (one, other))
        assert moments == pytest.approx(expected, abs=1e-6)
    elif isinstance(one, Stretches) and isinstance(other, Stretches):
        assert [number for number, _ in one.parts] == [number for number, _ in other.parts]
        for (_, ours), (_, theirs) in zip(one.parts, other.parts, strict=True):
            assert_same(ours, theirs)
    else:
        for each in fields(one):  # type: ignore[arg-type]
            assert_same(getattr(one, each.name), getattr(other, each.name))


def test_requests_are_counted_as_a_router_counts_them() -> None:
    made = requests(1)
    assert_same(counted(made), ArmStats().with_all(samples(made)))


def test_copies_and_their_originals_are_counted_as_a_router_counts_them() -> None:
    copies = requests(2)
    originals = replace(requests(3), at_s=copies.at_s)
    usual = [replace(each, is_mirrored=True) for each in samples(originals)]
    new = [
        replace(each, is_mirrored=True, original=original)
        for each, original in zip(samples(copies), usual, strict=True)
    ]
    ours = counted_pairs(copies, originals)
    assert_same(ours[0], ArmStats().with_all(new))
    assert_same(ours[1], ArmStats().with_all(usual))


def test_slow_phases_take_a_sixth_of_the_time() -> None:
    phases = Phases(np.random.default_rng(1), 36_000)
    factors = phases.factors(np.arange(0, 36_000, 0.5))
    assert set(factors) == {1.0, 3.0}
    assert np.mean(factors == 3.0) == pytest.approx(1 / 6, abs=0.02)
