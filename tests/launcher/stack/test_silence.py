from __future__ import annotations

from launcher.stack.silence import LOOK_PERIOD_S, PATIENCE_S, SilenceWatch


def looks(watch: SilenceWatch, since_s: float, until_s: float) -> list[str | None]:
    times = [
        since_s + LOOK_PERIOD_S * number for number in range(int((until_s - since_s) / LOOK_PERIOD_S) + 1)
    ]
    return [watch.find_fault(now_s) for now_s in times]


def test_a_server_that_answers_nobody_for_long_is_broken() -> None:
    watch = SilenceWatch(lambda: False)
    *before, fault = looks(watch, 100.0, 100.0 + PATIENCE_S)
    assert before == [None] * len(before)
    assert fault == "it has not answered for 60 s"


def test_a_server_that_answers_now_and_then_is_not_broken() -> None:
    answers = iter([False, False, True] * 100)
    assert set(looks(SilenceWatch(lambda: next(answers)), 0.0, 1000.0)) == {None}


def test_a_server_is_asked_once_a_period_and_anew_after_a_start() -> None:
    asked = []

    def answers() -> bool:
        asked.append(True)
        return False

    watch = SilenceWatch(answers)
    for tenth in range(100):
        watch.find_fault(100.0 + tenth / 10)
    assert len(asked) == 2
    watch.begin()
    assert watch.find_fault(100.0 + PATIENCE_S) is None
