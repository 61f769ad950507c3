"""The figures of a run of faults, as the console opens them."""

from __future__ import annotations

import json

from loadtest.chaos.storage import COLUMNS, to_json
from tests.loadtest.chaos.test_page import results


def test_every_fault_is_there_with_each_of_its_requests() -> None:
    broken = results()
    broken[3].violations = ["2 blocks are left"]
    told = json.loads(json.dumps(to_json("inflight chaos", broken, {"skew-clock": "missing"}, "here")))
    assert (told["version"], told["kind"], len(told["episodes"])) == (1, "chaos", 25)
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in told["episodes"][3]["requests"]]
    assert [each["outcome"] for each in rows] == ["whole", "cut", "refused"]
    assert rows[1]["took_s"] is None
    assert told["episodes"][3]["violations"] == ["2 blocks are left"]
    assert told["skipped"] == {"skew-clock": "missing"}
