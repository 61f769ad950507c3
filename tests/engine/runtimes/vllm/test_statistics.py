"""What vLLM tells of its iterations becomes gauges."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from python_backend.costs.step_cost import StepShape
from python_backend.engine.runtimes.hosted.iterations import Iterations
from python_backend.engine.runtimes.vllm.statistics import VllmStatistics


def told(running: int, prompt_tokens: int = 0, elapsed_ms: float = 5.0, usage: float = 0.5) -> Any:
    details = SimpleNamespace(
        num_ctx_requests=int(prompt_tokens > 0),
        num_ctx_tokens=prompt_tokens,
        num_generation_requests=running,
        elapsed_ms=elapsed_ms,
        is_dummy=False,
    )
    return SimpleNamespace(
        kv_cache_usage=usage,
        num_running_reqs=running,
        num_waiting_reqs=0,
        prefix_cache_stats=SimpleNamespace(hits=32, queries=40),
        iteration_details=details,
    )


def test_blocks_are_counted_over_all_copies_of_the_model() -> None:
    now = Iterations()
    noted = VllmStatistics(now, 100, 16)
    noted.note(told(1, usage=0.5), SimpleNamespace(num_preempted_reqs=2), 0)
    noted.note(told(1, usage=0.25), None, 1)
    assert (now.used_blocks, now.preemptions, now.count) == (75, 2, 2)
    assert (now.reused_blocks, now.new_blocks) == (4, 2)


def test_an_iteration_takes_the_time_since_the_last_unless_nothing_ran() -> None:
    now, clock_s = Iterations(), iter([10.0, 10.02, 50.0])
    noted = VllmStatistics(now, 100, 16, lambda: next(clock_s))
    noted.note(told(3), None, 0)
    noted.note(told(0), None, 0)  # nobody is left
    noted.note(told(1, elapsed_ms=7), None, 0)
    assert round(now.busy_ns / 1e6) == 5 + 20 + 7


def test_the_cost_of_iterations_is_learned() -> None:
    now, now_s = Iterations(), [100.0]
    noted = VllmStatistics(now, 1000, 16, lambda: now_s[0])
    for number in range(400):
        sequences = 1 + number % 40
        now_s[0] += 0.010 + 0.001 * sequences
        noted.note(told(sequences, usage=0.0), None, 0)
    assert now.learned is not None
    assert abs(now.learned.cost.base_ms - 10) < 1
    assert abs(now.learned.cost.decode_sequence_ms - 1) < 0.1


def test_iterations_that_are_told_in_one_breath_do_not_make_a_crowd_look_dear() -> None:
    """A crowd holds up whoever listens, again and again; the core computes on meanwhile."""
    now, now_s = Iterations(), [100.0]
    noted = VllmStatistics(now, 1000, 16, lambda: now_s[0])

    def cost_s(sequences: int, prompt_tokens: int) -> float:
        return (7 + 0.02 * prompt_tokens + 0.07 * sequences) / 1000

    def tell(*steps: tuple[int, int], late: bool = False) -> None:
        now_s[0] += late * sum(cost_s(*step) for step in steps)
        for sequences, prompt_tokens in steps:
            now_s[0] += 1e-4 if late else cost_s(sequences, prompt_tokens)
            noted.note(told(sequences, prompt_tokens, usage=0.0), None, 0)

    for _ in range(11):
        tell((0, 512), *[(1, 0)] * 255)
    for crowd in range(16):
        tell(*[(16 * crowd + 1, 512 * (1 + number % 16)) for number in range(16)], late=True)
        assert now.learned is not None
        predicted_ms = now.learned.cost.step_ms(StepShape(8192, 256, 0))
        assert 0.5 < predicted_ms / 1000 / cost_s(256, 8192) < 2, crowd
