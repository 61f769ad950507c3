"""Which GPUs servers get, for any number of both."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from launcher.placement import groups_of, place_of, servers_for_all


@given(count=st.integers(0, 32), size=st.integers(1, 9), servers=st.integers(1, 40))
def test_each_server_has_its_size_and_none_more_company_than_needed(
    count: int, size: int, servers: int
) -> None:
    gpus = [f"GPU-{number}" for number in range(count)]
    groups = groups_of(gpus, size)
    assert all(len(set(group)) == size for group in groups)
    assert len(groups) == count // size
    if not groups:
        assert servers_for_all(count, size) == 1
        return
    company = Counter(gpu for number in range(servers) for gpu in place_of(number, groups))
    assert max(company.values()) == -(-servers // len(groups))
    # As many servers as `all` starts use every GPU that can be used, each alone.
    alone = Counter(gpu for number in range(servers_for_all(count, size)) for gpu in place_of(number, groups))
    assert set(alone.values()) == {1}
    assert count - len(alone) < size
