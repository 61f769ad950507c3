"""Hours of traffic, out of what was billed."""

from __future__ import annotations

from router.control.whatif.recorded_traffic import arrivals_in, hours_of
from router.core.tenant import UsageRecord
from router.store.database import Store
from router.store.schema import usage
from router.tenants.administration import Administration
from router.tenants.rbac import SYSTEM
from router.tenants.records import USAGE_NAMES, row_of_usage

MODEL = "tiny"
NOW_S = 1_794_740_000.0


def keep_usage(store: Store, tenant: str, *moments_s: float, model: str = MODEL) -> None:
    rows = [
        UsageRecord(f"{model}-{at_s}", tenant, "u", "k", model, "1", at_s, at_s + 1, 7, 0, 5, 0, "finished")
        for at_s in moments_s
    ]
    with store.begin() as connection:
        values = [dict(zip(USAGE_NAMES, row_of_usage(each), strict=True)) for each in rows]
        connection.execute(usage.insert(), values)


def test_hours_are_those_in_which_something_was_asked_of_the_model(store: Store) -> None:
    tenant = Administration(store, b"p" * 32).create_organisation(SYSTEM, "acme").id
    keep_usage(store, tenant, NOW_S - 10, NOW_S - 3599, NOW_S - 3 * 3600 - 5, NOW_S - 30 * 3600)
    keep_usage(store, tenant, NOW_S - 20, model="another")
    with store.read() as connection:
        hours = hours_of(connection, MODEL, NOW_S)
        assert [(each.began_s - NOW_S, each.requests) for each in hours] == [(-3600, 2), (-4 * 3600, 1)]
        assert (hours[0].prompt_tokens, hours[0].completion_tokens) == (14, 10)
        found = arrivals_in(connection, MODEL, hours[0].began_s)
    assert [each.started_s - NOW_S for each in found] == [-3599, -10]
    assert {each.tenant for each in found} == {tenant}
