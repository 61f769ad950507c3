"""Which batch sizes get a graph, and which of them a step uses."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from python_backend.engine.cuda.graphs import _smallest_with_room, graph_sizes

batch_sizes = st.integers(1, 2000)


@given(batch_sizes)
def test_graph_sizes_go_up_to_the_largest_batch(most: int) -> None:
    sizes = graph_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == most


@given(batch_sizes)
def test_graph_sizes_waste_few_padding_rows(most: int) -> None:
    size_for = _smallest_with_room(graph_sizes(most))
    for rows in range(1, most + 1):
        assert size_for[rows] - rows < max(8, rows // 4 + 1, 32 * (rows > 256))


@given(batch_sizes)
def test_a_step_uses_the_smallest_graph_that_fits(most: int) -> None:
    sizes = graph_sizes(most)
    size_for = _smallest_with_room(sizes)
    assert len(size_for) == most + 1
    for rows in range(1, most + 1):
        assert size_for[rows] == min(size for size in sizes if size >= rows)


def test_the_graph_sizes_up_to_512_are_few_enough_to_capture_in_seconds() -> None:
    assert len(graph_sizes(512)) < 40
