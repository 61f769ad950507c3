from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.engine.models.config import Config
from python_backend.engine.models.rope import RopeSettings, make_rope, no_rope, pair_up


def test_the_older_spelling_of_rope_settings_is_read_alike() -> None:
    older = {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}}
    newer = {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}}
    ropes = [
        make_rope(RopeSettings.of(Config(config, {"max_position_embeddings": 64}), 16))
        for config in (older, newer)
    ]
    np.testing.assert_array_equal(ropes[0].inverse_frequencies, ropes[1].inverse_frequencies)


def test_without_rope_nothing_is_rotated() -> None:
    assert no_rope(6).inverse_frequencies.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("rotary_dim", "order"), [(6, [0, 3, 1, 4, 2, 5]), (4, [0, 2, 1, 3, 4, 5])])
def test_rope_pairs_become_neighbours(rotary_dim: int, order: list[int]) -> None:
    assert pair_up(np.arange(6, dtype=np.float32), 1, rotary_dim).tolist() == order


@settings(deadline=None)
@given(heads=st.integers(1, 4), pairs=st.integers(1, 6), rest=st.integers(0, 5), columns=st.integers(1, 3))
def test_pairing_reorders_rows_within_their_head_and_loses_none(
    heads: int, pairs: int, rest: int, columns: int
) -> None:
    head_dim = 2 * pairs + rest
    rows = np.arange(heads * head_dim * columns, dtype=np.float32).reshape(-1, columns)
    paired = pair_up(rows, heads, 2 * pairs)
    for head in range(heads):
        mine = slice(head * head_dim, (head + 1) * head_dim)
        assert sorted(paired[mine].tolist()) == rows[mine].tolist()


@pytest.mark.parametrize(
    ("given", "usable"),
    [
        ({"max_position_embeddings": 40960, "original": 32768}, 131072),
        ({"max_position_embeddings": 32768, "original": None}, 131072),
        ({"max_position_embeddings": 262144, "original": 32768}, 262144),
    ],
)
def test_yarn_makes_all_positions_usable_that_its_factor_gives(
    given: dict[str, int | None], usable: int
) -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0}
    if given["original"]:
        scaling["original_max_position_embeddings"] = given["original"]
    config = Config(
        {"max_position_embeddings": given["max_position_embeddings"], "rope_scaling": scaling}, {}
    )
    assert RopeSettings.of(config, 64).usable_positions == usable
