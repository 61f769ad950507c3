from __future__ import annotations

import stat
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.tenants import Tenant, TenantMix, TenantsError, read_tenants, tenants_of, write_tenants


@settings(deadline=None)
@given(st.lists(st.floats(0.1, 100), min_size=1, max_size=6), st.integers(1, 200))
def test_after_any_number_of_users_each_tenant_has_its_share(weights: list[float], users: int) -> None:
    tenants = [Tenant(f"t{number}", weight=weight) for number, weight in enumerate(weights)]
    mix = TenantMix(tenants)
    counts = Counter(mix.next().name for _ in range(users))
    for tenant in tenants:
        # What smooth weighted turns promise: never further off than the number of tenants.
        assert abs(counts[tenant.name] - users * tenant.weight / sum(weights)) < len(tenants)


def test_whole_weights_come_out_exactly() -> None:
    mix = TenantMix([Tenant("a", weight=3), Tenant("b", weight=2), Tenant("c", weight=1)])
    assert Counter(mix.next().name for _ in range(12)) == {"a": 6, "b": 4, "c": 2}


def test_tenants_are_read_back_as_written_and_only_by_their_owner(tmp_path: Path) -> None:
    tenants = [Tenant("a", "ik-secret", 3, "interactive"), Tenant("b")]
    path = tmp_path / "tenants.json"
    write_tenants(path, tenants)
    assert read_tenants(path) == tenants
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_key_does_not_show_in_logs() -> None:
    assert "ik-secret" not in f"{Tenant('a', 'ik-secret')} {Tenant('a', 'ik-secret')!r}"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "cannot be read"),
        ("[]", "not hold a list of tenants"),
        ('{"name": "a"}', "not hold a list of tenants"),
        ("[3]", "not an object with a name"),
        ('[{"key": "k"}]', "no name"),
        ('[{"name": "a", "wieght": 2}]', "unknown field 'wieght'; allowed: name, key, weight, tier"),
        ('[{"name": "a", "weight": "2"}]', "weight of 'a' is of the wrong type"),
        ('[{"name": "a", "weight": 0}]', "must be above 0"),
        ('[{"name": "a", "tier": "gold"}]', "allowed: interactive, standard, batch"),
    ],
)
def test_an_unusable_tenants_file_says_why(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "tenants.json"
    path.write_text(text)
    with pytest.raises(TenantsError, match=problem):
        read_tenants(path)


def test_without_a_file_there_is_one_tenant_with_the_environments_key() -> None:
    assert tenants_of("", {"INFLIGHT_API_KEY": "ik-1"}) == [Tenant(key="ik-1")]
    assert tenants_of("", {}) == [Tenant("local")]
