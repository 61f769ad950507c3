"""What is broken is loaded again: at once, then ever later, and only by the router in control."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field

import pytest

from router.control.health.reviver import Reviver
from router.triton.control import ControlError


@dataclass
class FakeControl:
    can_control: bool = True
    revivals: list[str] = field(default_factory=list)
    failing: set[str] = field(default_factory=set)
    holding: asyncio.Event | None = None

    async def revive(self, model: str) -> None:
        self.revivals.append(model)
        if self.holding is not None:
            await self.holding.wait()
        if model in self.failing:
            raise ControlError("out of memory")


@dataclass
class FakePatient:
    name: str = "m@1 on a"
    release: str = "m@1"
    broken: set[str] = field(default_factory=lambda: {"engine"})
    control: FakeControl = field(default_factory=FakeControl)
    told: list[str] = field(default_factory=list)

    def revival_begins(self) -> None:
        self.told.append("begins")

    def revival_failed(self) -> None:
        self.told.append("failed")

    def revived(self, models: object) -> None:
        self.told.append("revived")


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def attend(reviver: Reviver, patient: FakePatient) -> None:
    reviver.attend(patient)
    for _ in range(5):
        await asyncio.sleep(0)


async def test_all_broken_models_are_revived_at_once() -> None:
    patient = FakePatient(broken={"b", "a"})
    await attend(Reviver(lambda: True, Clock()), patient)
    assert patient.control.revivals == ["a", "b"]
    assert patient.told == ["begins", "revived"]


async def test_only_the_router_in_control_revives() -> None:
    patient, in_control = FakePatient(), [False]
    reviver = Reviver(lambda: in_control[0], Clock())
    await attend(reviver, patient)
    assert patient.told == []
    in_control[0] = True
    await attend(reviver, patient)
    assert patient.told == ["begins", "revived"]


async def test_a_tampered_release_is_not_loaded_again(caplog: pytest.LogCaptureFixture) -> None:
    patient, asked = FakePatient(), []

    async def find_fault(release: str) -> str | None:
        asked.append(release)
        return "model.py has changed since it was added"

    await attend(Reviver(lambda: True, Clock(), find_fault), patient)
    assert (patient.control.revivals, patient.told, asked) == ([], ["begins", "failed"], ["m@1"])
    assert "model.py has changed since it was added" in caplog.text


async def test_without_the_secret_no_revival_is_tried() -> None:
    patient = FakePatient(control=FakeControl(can_control=False))
    await attend(Reviver(lambda: True, Clock()), patient)
    assert patient.told == []


async def test_one_revival_is_in_flight_at_a_time() -> None:
    patient = FakePatient(control=FakeControl(holding=asyncio.Event()))
    clock = Clock()
    reviver = Reviver(lambda: True, clock)
    for _ in range(3):
        await attend(reviver, patient)
        clock.now_s += 100
    assert patient.control.revivals == ["engine"]
    await reviver.close()
    assert patient.told == ["begins", "failed"]


async def test_failed_revivals_are_retried_ever_later_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    patient, clock = FakePatient(control=FakeControl(failing={"engine"})), Clock()
    reviver = Reviver(lambda: True, clock)
    tried_s = []
    for _ in range(400):
        before = len(patient.control.revivals)
        await attend(reviver, patient)
        if len(patient.control.revivals) > before:
            tried_s.append(clock.now_s - 1000)
        clock.now_s += 1
    assert tried_s == [0, 1, 3, 7, 15, 31, 63, 123, 183, 243, 303, 363]
    assert set(patient.told) == {"begins", "failed"}
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert "cannot revive engine, attempt 3; next attempt in 4 s: out of memory" in errors[2]


async def test_a_failing_model_does_not_delay_the_revival_of_another() -> None:
    patient, clock = FakePatient(control=FakeControl(failing={"a"}), broken={"a"}), Clock()
    reviver = Reviver(lambda: True, clock)
    await attend(reviver, patient)
    patient.broken = {"a", "b"}
    await attend(reviver, patient)
    assert patient.control.revivals == ["a", "b"]
