from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from python_backend.triton_adapter import backpressure
from python_backend.triton_adapter.backpressure import Acknowledger, Pacer

TWO_CORES = 2
PATIENCE_S = 0.3
# A sender that does not wait for its patience returns long before that, on a busy machine too.
LONG_S = 30.0


@pytest.fixture
def pacer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pacer]:
    monkeypatch.setattr("os.cpu_count", lambda: TWO_CORES)
    monkeypatch.setattr(backpressure, "_PATIENCE_S", PATIENCE_S)
    pacer = Pacer()
    yield pacer
    pacer.close()


@pytest.fixture
def acknowledger() -> Iterator[Acknowledger]:
    acknowledger = Acknowledger()
    yield acknowledger
    acknowledger.close()


def waited_s(pacer: Pacer) -> float:
    start_s = time.monotonic()
    pacer.wait_for_room()
    return time.monotonic() - start_s


@pytest.fixture
def patient(pacer: Pacer, monkeypatch: pytest.MonkeyPatch) -> Pacer:
    monkeypatch.setattr(backpressure, "_PATIENCE_S", LONG_S)
    return pacer


def test_there_is_room_until_something_is_in_flight(patient: Pacer) -> None:
    assert waited_s(patient) < LONG_S


def test_a_sender_may_send_again_once_a_response_was_handled(
    patient: Pacer, acknowledger: Acknowledger
) -> None:
    for _ in range(100):
        patient.sent()
        acknowledger.handled(patient.lane)
        assert waited_s(patient) < LONG_S


def test_a_missing_acknowledgement_costs_a_short_wait_once(
    pacer: Pacer, monkeypatch: pytest.MonkeyPatch
) -> None:
    pacer.sent()
    assert waited_s(pacer) >= PATIENCE_S * 0.9
    monkeypatch.setattr(backpressure, "_PATIENCE_S", LONG_S)
    assert waited_s(pacer) < LONG_S


def test_two_senders_of_one_server_have_their_own_lanes(pacer: Pacer, acknowledger: Acknowledger) -> None:
    other = Pacer()
    assert other.lane != pacer.lane
    pacer.sent()
    acknowledger.handled(other.lane)
    assert waited_s(pacer) >= PATIENCE_S * 0.9
    other.close()


def test_an_acknowledgement_to_a_closed_sender_does_no_harm(acknowledger: Acknowledger) -> None:
    gone = Pacer()
    gone.close()
    acknowledger.handled(gone.lane)
