from __future__ import annotations

import pytest

from python_backend.wire.errors import ErrorKind, InflightError


@pytest.mark.parametrize("kind", ErrorKind)
def test_an_error_survives_the_trip_through_an_ensemble(kind: ErrorKind) -> None:
    sent = InflightError(kind, "the prompt has 9 tokens: too many\nby one")
    received = InflightError.from_text(f"in ensemble 'ensemble', {sent.to_text()}")
    assert (received.kind, received.message) == (kind, sent.message)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Exceeds maximum queue size", ErrorKind.OVERLOADED),
        ("Request timeout expired", ErrorKind.OVERLOADED),
        ("in ensemble 'e', Stub process 'preprocessing_0_0' is not healthy.", ErrorKind.OVERLOADED),
        ("Request for unknown model: 'x' is not found", ErrorKind.MODEL_NOT_FOUND),
        ("something else entirely", ErrorKind.INTERNAL),
        ("", ErrorKind.INTERNAL),
    ],
)
def test_tritons_own_error_texts_are_mapped_to_kinds(text: str, kind: ErrorKind) -> None:
    assert InflightError.from_text(text).kind is kind


def test_a_kind_must_stand_alone_to_be_read_back() -> None:
    assert InflightError.from_text("not_overloaded: no").kind is ErrorKind.INTERNAL
