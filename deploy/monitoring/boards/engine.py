"""Inside Triton: steps, batches and cache of the engines, Triton's own queues, the machine."""

from __future__ import annotations

from deploy.monitoring.board import (
    MODEL,
    REPLICA,
    TRITON,
    TRITON_MODEL,
    Board,
    Panel,
    Query,
    Section,
    quantile,
)
from deploy.monitoring.boards.engine_queries import NAME, OF_ENGINE, each, rate_each
from deploy.monitoring.boards.triton_server import MACHINE, TRITON_ITSELF

_OF_REPLICA = 'model=~"$model",replica=~"$replica"'
_NO_ENGINE = "no Inflight engine"


def _kv(kind: str) -> str:
    return each("nv_trt_llm_kv_cache_block_metrics", f'kv_cache_block_type="{kind}"')


def _requests(kind: str) -> str:
    return each("nv_trt_llm_request_metrics", f'request_type="{kind}"')


def _mean(metric: str) -> str:
    """Of a histogram."""
    return f"{rate_each(metric + '_sum')} / {rate_each(metric + '_count')}"


_STEPS = Section(
    "What does a step cost?",
    (
        Panel(
            "Steps each second",
            "Forward passes of the engine.",
            "ops",
            (
                Query(
                    "sum by (model, instance) (rate("
                    + each("nv_trt_llm_general_metrics", 'general_type="iteration_counter"')
                    + "[$__rate_interval]))",
                    NAME,
                ),
            ),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Mean time of a step",
            "Time with steps in flight, divided by their number.",
            "s",
            (
                Query(
                    rate_each("inflight_engine_busy_seconds_total")
                    + " / "
                    + "sum by (model, instance) (rate("
                    + each("nv_trt_llm_general_metrics", 'general_type="iteration_counter"')
                    + "[$__rate_interval]))",
                    NAME,
                ),
            ),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Busy ratio",
            "Share of the time with a step in flight. Low while requests wait: the engine waits for the "
            "host.",
            "percentunit",
            (Query(rate_each("inflight_engine_busy_seconds_total"), NAME),),
            width=8,
            largest=1.0,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Learned cost of a step",
            "Fixed (base), and for each prompt token, each sequence, and 1,000 cached tokens.",
            "s",
            (Query(each("inflight_engine_step_cost_seconds"), NAME + " {{coefficient}}"),),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Error of predicted steps",
            "Mean error of the learned cost, as a share of it.",
            "percentunit",
            (Query(each("inflight_engine_step_cost_error_ratio"), NAME),),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Is the learned cost frozen?",
            "1 while predictions are off by so much that the last good cost is used.",
            "short",
            (
                Query(each("inflight_engine_step_cost_frozen"), NAME),
                Query(
                    "max by (model, replica) (inflight_replica_step_cost_frozen{" + _OF_REPLICA + "})",
                    "{{model}} {{replica}} (router)",
                ),
            ),
            width=8,
            largest=1.0,
            no_value=_NO_ENGINE,
        ),
    ),
)

_BATCH = Section(
    "What is in the batch?",
    (
        Panel(
            "Sequences in the engine",
            "In the batch (scheduled), in prefill (context), waiting, and the maximum.",
            "short",
            tuple(
                Query(_requests(kind), f"{NAME} {kind}")
                for kind in ("scheduled", "context", "waiting", "max")
            ),
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Limits of a step in force",
            "Sequences and tokens that one step may hold; objectives lower them.",
            "short",
            (
                Query(each("inflight_engine_batch_limit_sequences"), f"{NAME} sequences"),
                Query(each("inflight_engine_step_limit_tokens"), f"{NAME} tokens"),
            ),
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Batch occupancy",
            "Sequences in the batch, as a share of what it may hold now, as seen by the router.",
            "percentunit",
            (
                Query(
                    "max by (model, replica) (inflight_replica_batch_occupancy_ratio{" + _OF_REPLICA + "})",
                    "{{model}} {{replica}}",
                ),
            ),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Wait in the engine at p95",
            "From a row's arrival in the engine to its first step, by tier.",
            "s",
            (Query(quantile(0.95, "inflight_engine_queue_seconds", "tier", OF_ENGINE), "{{tier}}"),),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "First token in the engine at p95",
            "From a row's arrival in the engine to its first token, by tier. The rest of what the router "
            "measures is spent before or after the engine.",
            "s",
            (
                Query(
                    quantile(0.95, "inflight_engine_time_to_first_token_seconds", "tier", OF_ENGINE),
                    "{{tier}}",
                ),
            ),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Between tokens in the engine",
            "Mean time from token to token of a response, at p50 and p95.",
            "s",
            tuple(
                Query(
                    quantile(share, "inflight_engine_inter_token_seconds", "model", OF_ENGINE),
                    f"{{{{model}}}} p{share * 100:g}",
                )
                for share in (0.5, 0.95)
            ),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Streams being put together",
            "Answers in progress in postprocessing.",
            "short",
            (Query('inflight_engine_postprocessing_streams{instance=~"$triton"}', NAME),),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Length of prompts and answers",
            "Mean tokens of a finished row.",
            "short",
            (
                Query(
                    rate_each("nv_llm_input_token_len_sum")
                    + " / "
                    + rate_each("nv_llm_input_token_len_count"),
                    f"{NAME} prompt",
                ),
                Query(
                    rate_each("nv_llm_output_token_len_sum")
                    + " / "
                    + rate_each("nv_llm_output_token_len_count"),
                    f"{NAME} answer",
                ),
            ),
            width=8,
            no_value=_NO_ENGINE,
        ),
    ),
)

_CACHE = Section(
    "Is there cache, and is it reused?",
    (
        Panel(
            "KV blocks",
            "Used, and all; cached ones are free and hold a prefix that may be reused.",
            "short",
            (
                Query(_kv("used"), f"{NAME} used"),
                Query(_kv("max"), f"{NAME} all"),
                Query(each("inflight_engine_cached_blocks"), f"{NAME} cached"),
            ),
            no_value=_NO_ENGINE,
        ),
        Panel(
            "KV cache used",
            "Share of the blocks that sequences hold.",
            "percentunit",
            (Query(_kv("fraction"), NAME),),
            largest=1.0,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Blocks found in the prefix cache",
            "Per second: parts of prompts that need not be computed again.",
            "ops",
            (Query(rate_each("inflight_engine_reused_blocks_total"), NAME),),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Preemptions",
            "Sequences preempted each second to make room for others; they are computed again.",
            "ops",
            (Query(rate_each("inflight_engine_preemptions_total"), NAME),),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Memory of the engine",
            "Of its process, pinned, and on the GPU, if there is one.",
            "bytes",
            tuple(
                Query(each("nv_trt_llm_runtime_memory_metrics", f'memory_type="{kind}"'), f"{NAME} {kind}")
                for kind in ("cpu", "gpu", "pinned")
            ),
            width=8,
            no_value=_NO_ENGINE,
        ),
    ),
)

BOARD = Board(
    "inflight-engine",
    "Inflight: engine",
    "Inside Triton: steps, batches and cache of the engines, Triton's own queues, the machine.",
    (_STEPS, _BATCH, _CACHE, TRITON_ITSELF, MACHINE),
    (TRITON, TRITON_MODEL, MODEL, REPLICA),
)
