from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from loadtest.replay.plan import InventedPrompt, plan_of
from loadtest.traces import BLOCK_TOKENS, TracedRequest

BLOCKS = st.lists(st.integers(0, 5), max_size=4).map(tuple)


@settings(deadline=None)
@given(BLOCKS, BLOCKS, st.integers(1, 2500), st.integers(1, 2500))
def test_prompts_share_exactly_the_tokens_of_their_shared_blocks(
    mine: tuple[int, ...], others: tuple[int, ...], my_tokens: int, their_tokens: int
) -> None:
    first = InventedPrompt(my_tokens, 3, 0, mine).token_ids()
    second = InventedPrompt(their_tokens, 3, 1, others).token_ids()
    assert (len(first), len(second)) == (my_tokens, their_tokens)
    equal_blocks = next(
        (number for number, pair in enumerate(zip(mine, others, strict=False)) if pair[0] != pair[1]),
        min(len(mine), len(others)),
    )
    shared = min(equal_blocks * BLOCK_TOKENS, my_tokens, their_tokens)
    assert first[:shared] == second[:shared]
    beyond = first[shared : shared + 50], second[shared : shared + 50]
    assert min(map(len, beyond)) < 5 or beyond[0] != beyond[1]


def test_a_different_run_has_different_prompts() -> None:
    requests = [TracedRequest(0.0, 40, 3, blocks=(1,)), TracedRequest(1.0, 40, 3, "a", "batch")]
    first, again, other = (plan_of(requests, run) for run in (1, 1, 2))
    assert first == again
    assert [(each.at_s, each.tenant, each.tier, each.prompt_tokens) for each in first] == [
        (0.0, "", "standard", 40),
        (1.0, "a", "batch", 40),
    ]
    for one, two in zip(first, other, strict=True):
        assert isinstance(one.prompt, InventedPrompt)
        assert isinstance(two.prompt, InventedPrompt)
        assert one.prompt.token_ids() != two.prompt.token_ids()
    assert plan_of(requests) != plan_of(requests)
