from __future__ import annotations

import pytest

from python_backend.engine.kv.host_blocks import BlockMove, HostBlocks
from python_backend.engine.request import GenerationRequest
from tests.engine.drained import drain
from tests.fakes.executor import continuation, fake_engine

A, B, C = (letter.encode() for letter in "abc")
Moves = list[tuple[list[BlockMove], list[BlockMove]]]


def host_of(blocks: int) -> tuple[HostBlocks, Moves]:
    moves: Moves = []
    return HostBlocks(blocks, lambda saves, loads: moves.append((list(saves), list(loads)))), moves


def test_what_is_saved_is_found_by_what_it_holds() -> None:
    host, moves = host_of(3)
    host.save(7, A)
    host.save(8, C)
    assert [each in host for each in (A, B, C)] == [True, False, True]
    host.load(5, A)
    host.flush()
    assert moves == [([BlockMove(7, 0), BlockMove(8, 1)], [BlockMove(5, 0)])]
    host.flush()
    assert len(moves) == 1


def test_the_one_unused_for_longest_goes_first_but_never_one_that_is_about_to_be_read() -> None:
    host, _ = host_of(2)
    host.save(1, A)
    host.save(2, B)
    host.want([A])
    host.save(3, C)
    assert [each in host for each in (A, B, C)] == [True, False, True]
    host.want([C])
    host.save(4, B)  # both are wanted: it is lost
    assert B not in host
    host.flush()
    host.save(4, B)
    assert B in host
    host.check()


def test_what_is_there_already_is_not_saved_again() -> None:
    host, moves = host_of(2)
    host.save(1, A)
    host.save(9, A)
    host.flush()
    assert moves == [([BlockMove(1, 0)], [])]


def test_no_block_at_all_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        host_of(0)


@pytest.mark.parametrize("depth", [1, 2])
def test_a_second_turn_after_eviction_computes_only_what_is_new(depth: int) -> None:
    engine, executor = fake_engine(total_blocks=8, host_blocks=32, depth=depth)
    prompt = list(range(20))
    engine.add(0, GenerationRequest(prompt, 4))
    answer = drain(engine)[0][0]
    for key in range(1, 4):  # others take every block
        engine.add(key, GenerationRequest([50 + key] * 25, 4))
        drain(engine)
    before = executor.computed_tokens
    turn = [*prompt, *answer, 33, 34]
    engine.add(9, GenerationRequest(turn, 1))
    assert drain(engine)[9][0] == continuation(turn, 1)
    assert executor.computed_tokens - before < 8
    assert engine.gauges().recalled_blocks >= 5
    assert engine.gauges().host_blocks > 0


def test_tenants_find_nothing_of_each_other_on_the_host() -> None:
    engine, _ = fake_engine(total_blocks=8, host_blocks=16)
    prompt = list(range(20))
    engine.add(0, GenerationRequest(prompt, 1, cache_salt="one"))
    drain(engine)
    engine.add(1, GenerationRequest([60] * 28, 1, cache_salt="one"))
    drain(engine)
    engine.add(2, GenerationRequest(prompt, 1, cache_salt="other"))
    drain(engine)
    assert engine.gauges().recalled_blocks == 0
    engine.add(3, GenerationRequest([61] * 28, 1, cache_salt="other"))
    drain(engine)
    engine.add(4, GenerationRequest(prompt, 1, cache_salt="one"))
    drain(engine)
    assert engine.gauges().recalled_blocks > 0
