from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from python_backend.wire.load_progress import LoadingStage, loading_text, read_loading

counts = some.integers(min_value=0, max_value=10**9)
stages = some.from_regex(r"[a-z][a-z0-9 :]*[a-z]", fullmatch=True)


@given(stages, counts, counts)
def test_a_logged_loading_stage_is_read_back(stage: str, done: int, total: int) -> None:
    line = f"2026-11-04 10:00:01,000 tensorrt_llm INFO {loading_text(stage, done, total)}"
    assert read_loading(line) == LoadingStage(stage, done, total)


def test_other_log_lines_are_not_loading_stages() -> None:
    for line in (
        "",
        "I1104 model_lifecycle.cc:1] loading: tensorrt_llm:1",
        "INFO loading: weights: many of 3",
    ):
        assert read_loading(line) is None
