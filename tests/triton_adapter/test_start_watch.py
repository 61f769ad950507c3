"""Starts are watched in processes of Triton's alone: others have their own use for alarms."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from python_backend.triton_adapter import start_watch


def test_outside_of_triton_nothing_is_watched() -> None:
    before = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0
    with start_watch.watched(0.001):
        time.sleep(0.01)
    start_watch.watch_imports()
    start_watch.imported()
    assert (signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0) == before


@start_watch.watched(0.05)
def hang() -> None:
    for _ in range(3000):  # one long sleep goes on where the system tells another thread of the alarm
        time.sleep(0.01)


def test_a_start_that_hangs_is_interrupted_and_one_that_does_not_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(start_watch, "_is_stub", lambda: True)
    monkeypatch.setattr(start_watch, "_LAST_S", 600.0)  # it would end this process, of which tests need more
    former, timer_s = signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0]
    try:
        with pytest.raises(TimeoutError, match=r"hangs: not finished after 0\.05 s"):
            hang()
        with start_watch.watched(60):
            pass
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    finally:
        signal.signal(signal.SIGALRM, former)
        signal.setitimer(signal.ITIMER_REAL, timer_s)


def test_more_to_read_may_take_longer(tmp_path: Path) -> None:
    nothing_s = start_watch.limit_s(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(b" " * (3 << 20))
    (tmp_path / "model.safetensors").write_bytes(b" " * (3 << 20))
    assert start_watch.limit_s(tmp_path) == pytest.approx(nothing_s + 6)
