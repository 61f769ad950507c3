"""Which signals ask to stop, and which to hurry."""

from __future__ import annotations

import signal

import pytest

from launcher.stack.stop_signals import StopSignals


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_duplicated_stop_signal_is_not_a_hurry_and_a_later_one_is() -> None:
    clock = Clock()
    signals = StopSignals(clock)
    with signals.handled():
        for after_s, hurry in ((0.0, False), (0.1, False), (0.6, True)):
            clock.now_s = 100.0 + after_s
            signal.raise_signal(signal.SIGTERM)
            assert (signals.stop_requested, signals.hurry_requested) == (True, hurry)


def test_only_the_first_signal_interrupts() -> None:
    signals = StopSignals()
    with signals.handled(), signals.interrupting():
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
    assert signals.received == [signal.SIGINT, signal.SIGINT]


def test_an_earlier_signal_keeps_interruptible_work_from_starting() -> None:
    signals = StopSignals()
    began = False
    with signals.handled():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt), signals.interrupting():
            began = True
        signal.raise_signal(signal.SIGINT)
    assert not began
