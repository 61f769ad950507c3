from __future__ import annotations

from collections import Counter

from loadtest.replay.assignment import with_tenants
from loadtest.tenants import Tenant
from loadtest.traces import Trace, TracedRequest

PEOPLE = [Tenant("acme", "k1", 2.0, "interactive"), Tenant("bolt", "k2", 1.0, "batch")]


def test_known_tenants_stay_and_others_are_divided_by_weight_and_kept_together() -> None:
    names = ["bolt", "x", "y", "z", "x", "y", "z", "bolt"]
    trace = Trace("t", tuple(TracedRequest(float(at), 1, 1, name) for at, name in enumerate(names)))
    found = with_tenants(trace, PEOPLE).requests
    assert [each.tenant for each in found if each.at_s in (0, 7)] == ["bolt", "bolt"]
    as_whom = {name: {each.tenant for each in found if names[int(each.at_s)] == name} for name in "xyz"}
    assert all(len(each) == 1 for each in as_whom.values())
    assert Counter(next(iter(each)) for each in as_whom.values()) == {"acme": 2, "bolt": 1}


def test_requests_without_a_tenant_are_divided_one_by_one_and_get_their_tenants_tier() -> None:
    trace = Trace(
        "t", (*(TracedRequest(0.0, 1, 1) for _ in range(6)), TracedRequest(0.0, 1, 1, "", "standard"))
    )
    found = with_tenants(trace, PEOPLE).requests
    assert Counter((each.tenant, each.tier) for each in found[:6]) == {
        ("acme", "interactive"): 4,
        ("bolt", "batch"): 2,
    }
    assert found[6].tier == "standard"
