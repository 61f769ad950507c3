from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from router.answer_cache.kept_answers import KeptAnswer, KeptAnswers

ROOM_BYTES = 40_000


def answer(tenant: str, size: int = 100) -> KeptAnswer:
    return KeptAnswer(tenant, 200, (), b"x" * size, False, "tiny", "1", 1, 1, 0.0)


def test_the_least_recently_used_answer_of_the_tenant_goes_first() -> None:
    kept = KeptAnswers(ROOM_BYTES)
    for name in (b"1", b"2", b"3"):
        kept.put(name, answer("a", 2000))
    kept.put(b"other", answer("b"))
    assert kept.get(b"1")
    kept.put(b"4", answer("a", 2000))
    assert [name for name in (b"1", b"2", b"3", b"4", b"other") if kept.get(name)] == [
        b"1",
        b"3",
        b"4",
        b"other",
    ]


def test_an_answer_larger_than_a_tenants_part_is_not_kept() -> None:
    kept = KeptAnswers(ROOM_BYTES)
    kept.put(b"1", answer("a", ROOM_BYTES // 4))
    assert len(kept) == 0


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.integers(0, 30), st.integers(0, 12_000), st.booleans()),
        max_size=80,
    )
)
def test_it_never_holds_more_than_it_may_and_its_books_agree(acts: list[tuple[str, int, int, bool]]) -> None:
    kept = KeptAnswers(ROOM_BYTES)
    for tenant, number, size, is_read in acts:
        name = f"{tenant}{number}".encode()
        if is_read:
            found = kept.get(name)
            assert found is None or found.tenant == tenant
        else:
            kept.put(name, answer(tenant, size))
        kept.check()
