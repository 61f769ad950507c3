from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.routing.split import Arm, Asking, Shadow, Split, Sticky, choose_version, is_shadowed, sticky_key

names = st.text(max_size=20)
askings = st.builds(Asking, st.text(min_size=1, max_size=20), names, names, names)
versions = st.integers(1, 9)


@st.composite
def divided(draw: st.DrawFn) -> Split:
    shares = draw(st.dictionaries(versions, st.integers(0, 100), min_size=1, max_size=5))
    total = sum(shares.values())
    if not total:
        shares, total = dict.fromkeys(shares, 1), len(shares)
    return Split(draw(names), tuple(Arm(str(version), share / total) for version, share in shares.items()))


@pytest.mark.parametrize(
    ("sticky", "same"),
    [
        (Sticky.TENANT, Asking("r2", "acme", "bob", "c2")),
        (Sticky.USER, Asking("r2", "acme", "ann", "c2")),
        (Sticky.CONVERSATION, Asking("r2", "acme", "bob", "c1")),
    ],
)
def test_the_stickiness_decides_which_requests_share_a_key(sticky: Sticky, same: Asking) -> None:
    first = Asking("r1", "acme", "ann", "c1")
    assert sticky_key(sticky, first) == sticky_key(sticky, same)
    assert sticky_key(Sticky.REQUEST, first) != sticky_key(Sticky.REQUEST, same)


def test_an_unknown_sticky_identity_falls_back_to_the_next_wider_one() -> None:
    by_conversation = [
        sticky_key(Sticky.CONVERSATION, asking)
        for asking in (Asking("r", "acme", "ann"), Asking("r", "acme"), Asking("r"))
    ]
    by_user = [sticky_key(Sticky.USER, Asking("r", "acme", "ann")), "acme", "r"]
    assert by_conversation == by_user


@pytest.mark.parametrize("sticky", [Sticky.USER, Sticky.CONVERSATION])
def test_users_and_conversations_of_two_tenants_are_not_the_same(sticky: Sticky) -> None:
    keys = {sticky_key(sticky, Asking("r", tenant, "ann", "c")) for tenant in ("acme", "other")}
    assert len(keys) == 2


@given(divided(), st.sampled_from(Sticky), askings, st.sets(versions))
def test_the_chosen_release_is_ready_and_the_splits_own_choice_where_possible(
    split: Split, sticky: Sticky, asking: Asking, ready: set[int]
) -> None:
    chosen = choose_version(split, sticky, asking, ready)
    wanted = int(split.choose(sticky_key(sticky, asking)))
    named = {int(arm.release) for arm in split.arms}
    if wanted in ready:
        assert chosen == wanted
    elif named & ready:
        most = max(arm.weight for arm in split.arms if int(arm.release) in ready)
        assert (str(chosen), most) in [(arm.release, arm.weight) for arm in split.arms]
        assert chosen in ready
    else:
        assert chosen is None


@given(divided(), st.sampled_from(list(Sticky)[1:]), askings, st.text(min_size=1, max_size=20))
def test_a_sticky_key_is_answered_by_the_same_release_whatever_the_request(
    split: Split, sticky: Sticky, asking: Asking, other_id: str
) -> None:
    if not asking.tenant:
        return
    again = Asking(other_id, asking.tenant, asking.user, asking.conversation)
    ready = range(10)
    assert choose_version(split, sticky, asking, ready) == choose_version(split, sticky, again, ready)


@pytest.mark.parametrize("sticky", Sticky)
def test_ten_percent_are_ten_percent_of_the_keys_of_any_kind(sticky: Sticky) -> None:
    """Within the binomial's 99 % interval; the places of keys are fixed, so this cannot flicker."""
    count, weight = 10_000, 0.1
    split = Split("salt", (Arm("2", weight), Arm("1", 1 - weight)))
    askings = [Asking(f"r{n}", f"t{n}", f"u{n}", f"c{n}") for n in range(count)]
    hits = sum(choose_version(split, sticky, asking, (1, 2)) == 2 for asking in askings)
    assert abs(hits - count * weight) <= 2.576 * math.sqrt(count * weight * (1 - weight))


def test_a_shadow_gets_its_share_and_never_what_it_answers_itself() -> None:
    count, shadow = 10_000, Shadow(2, 0.25)
    hits = sum(is_shadowed(shadow, "salt", f"r{number}", 1) for number in range(count))
    assert abs(hits - count * 0.25) <= 2.576 * math.sqrt(count * 0.25 * 0.75)
    assert not any(is_shadowed(shadow, "salt", f"r{number}", 2) for number in range(100))
    assert not is_shadowed(None, "salt", "r1", 1)
    assert is_shadowed(Shadow(2, 1.0), "salt", "r1", 1)


def test_the_shadowed_share_does_not_depend_on_the_chosen_release() -> None:
    """Or a comparison of the two would be one of other requests."""
    shadow, split = Shadow(3, 0.5), Split("salt", (Arm("2", 0.5), Arm("1", 0.5)))
    both = [(split.choose(f"r{n}"), is_shadowed(shadow, "salt", f"r{n}", 1)) for n in range(2_000)]
    for version in ("1", "2"):
        shadowed = [is_also for chosen, is_also in both if chosen == version]
        assert abs(sum(shadowed) / len(shadowed) - 0.5) < 0.06


@pytest.mark.parametrize("share", [0, -0.1, 1.1, math.nan])
def test_the_share_of_a_shadow_is_between_zero_and_one(share: float) -> None:
    with pytest.raises(ValueError, match="allowed: above 0, up to 1"):
        Shadow(1, share)
