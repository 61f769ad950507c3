from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.control.releases.inspection import scrub


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (
            "failed to read text proto from /home/ann/.local/releases/repository/smol.2/config.pbtxt",
            "failed to read text proto from config.pbtxt",
        ),
        ("Internal: ValueError: no\n\nAt:\n  /srv/a b/model.py(7): initialize\n", None),
        ("open '/etc/x.json': denied", "open 'x.json': denied"),
        (
            "Unable to open shared memory region: 'triton_python_backend_shm_region_1b2c'",
            "Unable to open shared memory region: 'a region of shared memory'",
        ),
        ("1/2 of the weights and/or more", "1/2 of the weights and/or more"),
        ("file:///srv/model", "model"),
        (
            "load failed for model 'm.7': ensemble 'm.7' depends on 'm.7.postprocessing' which has no loaded "
            "version. Model 'm.7.postprocessing' loading failed with error: version 7 is at UNAVAILABLE "
            "state: Internal: RuntimeError: it does not want to",
            "m.7.postprocessing: RuntimeError: it does not want to",
        ),
        (
            "load failed for model 'm.7': version 7 is at UNAVAILABLE state: Invalid argument: no backend",
            "m.7: no backend",
        ),
    ],
)
def test_scrubbing_keeps_the_message_and_removes_paths(said: str, told: str | None) -> None:
    scrubbed = scrub(said)
    assert "/srv" not in scrubbed
    assert "\n" not in scrubbed
    if told is not None:
        assert scrubbed == told


@settings(deadline=None)
@given(st.text())
def test_any_message_is_scrubbed_to_one_short_line(said: str) -> None:
    scrubbed = scrub(said)
    assert len(scrubbed) <= 400
    assert len(scrubbed.splitlines()) <= 1
    assert "/home/" not in scrub(f"{said} /home/ann/{said}")
