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
            "Time in which steps were in flight, for each of them.",
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
            "The part of the time in which a step was in flight. Low while requests wait: it waits for the"
            " host.",
            "percentunit",
            (Query(rate_each("inflight_engine_busy_seconds_total"), NAME),),
            width=8,
            largest=1.0,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Learned cost of a step",
            "At least (base), and for each token of prompts, each sequence, and 1,000 cached tokens.",
            "s",
            (Query(each("inflight_engine_step_cost_seconds"), NAME + " {{coefficient}}"),),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Error of predicted steps",
            "By which the learned cost is off, as a share of it.",
            "percentunit",
            (Query(each("inflight_engine_step_cost_error_ratio"), NAME),),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Is the learned cost frozen?",
            "1 while predictions are so wrong that the last good cost is used.",
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
            "In the batch (scheduled), of those reading their prompt (context), waiting for it, and the"
            " most.",
            "short",
            tuple(
                Query(_requests(kind), f"{NAME} {kind}")
                for kind in ("scheduled", "context", "waiting", "max")
            ),
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Limits of a step in force",
            "Sequences and tokens that one step may hold; objectives make them smaller.",
            "short",
            (
                Query(each("inflight_engine_batch_limit_sequences"), f"{NAME} sequences"),
                Query(each("inflight_engine_step_limit_tokens"), f"{NAME} tokens"),
            ),
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Batch occupancy",
            "Sequences in the batch, of those it may hold now, as the router sees it.",
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
            "From a row's arrival in the engine to its first token, by tier. What the router measures"
            " beyond it is spent before the engine or behind it.",
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
            "Of postprocessing: answers whose text is not whole yet.",
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
    "Is there cache, and is it used again?",
    (
        Panel(
            "KV blocks",
            "Used, and all there are; cached ones are free and hold a prefix that someone may ask for.",
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
            "The part of the blocks that sequences hold.",
            "percentunit",
            (Query(_kv("fraction"), NAME),),
            largest=1.0,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Blocks found in the prefix cache",
            "Each second: prompts, or parts of them, that need not be computed again.",
            "ops",
            (Query(rate_each("inflight_engine_reused_blocks_total"), NAME),),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Preemptions",
            "Sequences interrupted each second to make room for others; they are computed again.",
            "ops",
            (Query(rate_each("inflight_engine_preemptions_total"), NAME),),
            width=8,
            no_value=_NO_ENGINE,
        ),
        Panel(
            "Memory of the engine",
            "Of its process, pinned, and on the GPU where there is one.",
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
