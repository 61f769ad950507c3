from __future__ import annotations

from python_backend.triton_adapter.router_watch import RouterWatch


def look(watch: RouterWatch, begin_s: int, end_s: int) -> set[str]:
    return [watch.gone(float(now_s)) for now_s in range(begin_s, end_s)][-1]


def test_a_router_is_gone_that_asked_once_and_has_not_for_a_while() -> None:
    watch = RouterWatch()
    watch.heard("dead", 1.0)
    watch.heard("", 1.0)  # one that does not say who it is
    for now_s in range(1, 20):
        watch.heard("alive", float(now_s))
        found = watch.gone(float(now_s))
    assert found == {"dead"}
    watch.heard("dead", 20.0)
    assert not watch.gone(20.0)


def test_who_was_held_up_itself_calls_nobody_gone() -> None:
    watch = RouterWatch()
    watch.heard("alive", 1.0)
    look(watch, 1, 4)
    assert not watch.gone(60.0)
    assert look(watch, 61, 77) == {"alive"}


def test_routers_of_long_ago_are_forgotten() -> None:
    watch = RouterWatch()
    watch.heard("dead", 0.0)
    assert look(watch, 0, 3700) == set()
