"""What is remembered of one Triton model from look to look."""

from __future__ import annotations

import random

import pytest

from python_backend.costs.batch_cost import BatchCost
from router.control.tuning.statistics import Totals
from router.control.tuning.subject import Subject
from router.core.manifest import Kind, Manifest

TRUTH = BatchCost(8.0, 1.0, token_ms=0.3)


def test_tokens_that_the_router_read_tell_what_they_cost_in_triton() -> None:
    """Triton counts rows, of this router and of another; how long texts are only their router knows."""
    chance = random.Random(1)
    subject = Subject(Manifest("vectors", 1, Kind.EMBEDDINGS, ("vectors.1",)), "vectors.1", 0.0)
    totals, read = Totals(), (0, 0)
    subject.add("triton-0", totals, 0.0, read)
    for look in range(1, 80):
        row_tokens = chance.choice([8, 40, 200])
        rows = chance.choice([1, 4, 16])
        took_ns = int(10 * 1e6 * TRUTH.batch_ms(rows, rows * row_tokens) * chance.gauss(1, 0.03))
        news = Totals(10 * rows, 10 * rows, 10, 0, took_ns, {rows: (10, took_ns)})
        totals = totals.plus(news)
        read = read[0] + 5 * rows, read[1] + 5 * rows * row_tokens
        subject.add("triton-0", totals, float(look), read)
    assert subject.learner.learned is not None
    cost = subject.learner.learned.cost
    assert cost.batch_ms(8, 8 * 100) == pytest.approx(TRUTH.batch_ms(8, 8 * 100), rel=0.1)
    assert subject.window_tokens == pytest.approx(2 * read[1])


def test_of_a_model_without_texts_rows_are_all_that_counts() -> None:
    subject = Subject(Manifest("tensors", 1, Kind.TENSORS, ("tensors.1",)), "tensors.1", 0.0)
    totals = Totals()
    subject.add("triton-0", totals, 0.0)
    for look in range(1, 40):
        rows = 1 + look % 8
        took_ns = int(10 * 1e6 * (4 + 0.5 * rows))
        totals = totals.plus(Totals(10 * rows, 10 * rows, 10, 0, took_ns, {rows: (10, took_ns)}))
        subject.add("triton-0", totals, float(look))
    assert subject.learner.learned is not None
    assert subject.learner.learned.cost.token_ms == 0
    assert subject.learner.learned.cost.batch_ms(8) == pytest.approx(8.0, rel=0.05)
