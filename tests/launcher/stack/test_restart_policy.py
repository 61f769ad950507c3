"""When a process that died is started again."""

from __future__ import annotations

from launcher.stack.restart_policy import LONGEST_DELAY_S, RestartPolicy


def test_each_quick_death_waits_longer_and_the_last_gives_up() -> None:
    policy = RestartPolicy(quick_death_s=60, chances=3)
    assert [policy.delay_after_death(lived_s=1) for _ in range(4)] == [0.5, 1.0, 2.0, None]


def test_a_long_life_restores_all_restarts() -> None:
    policy = RestartPolicy(quick_death_s=60, chances=2)
    for _ in range(10):
        assert policy.delay_after_death(lived_s=1) is not None
        assert policy.delay_after_death(lived_s=3600) == 0.5


def test_the_restart_delay_is_bounded() -> None:
    policy = RestartPolicy(chances=50)
    assert max(policy.delay_after_death(lived_s=0) or 0 for _ in range(50)) == LONGEST_DELAY_S
