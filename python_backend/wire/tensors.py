"""Every tensor of the four-model contract `inflight_batcher_llm`, as shipped with TensorRT-LLM 1.2.1, and of
the `embeddings` model beside it.

`config.pbtxt` files are held against these tables by a test; the adapter decodes by them and the router
builds its requests from them. Dims are without the batch dimension; -1 is any length.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tensor:
    """One named tensor.

    `scalar` tensors are [B, 1] on the wire and [B] in the model (an empty reshape in the config).
    `extension` marks what the shipped contract does not have: others may leave it out.
    """

    name: str
    dtype: str
    dims: tuple[int, ...] = (1,)
    optional: bool = False
    ragged: bool = False
    scalar: bool = False
    extension: bool = False


@dataclass(frozen=True, slots=True)
class ModelContract:
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    def input(self, name: str) -> Tensor:
        return next(tensor for tensor in self.inputs if tensor.name == name)

    def output(self, name: str) -> Tensor:
        return next(tensor for tensor in self.outputs if tensor.name == name)


def _optional(name: str, dtype: str, *dims: int) -> Tensor:
    return Tensor(name, dtype, dims or (1,), optional=True)


def _option(name: str, dtype: str) -> Tensor:
    """An optional per-request scalar of the engine."""
    return Tensor(name, dtype, (1,), optional=True, scalar=True)


def _ragged(name: str, dtype: str, *dims: int) -> Tensor:
    return Tensor(name, dtype, dims, optional=True, ragged=True)


PREPROCESSING = ModelContract(
    inputs=(
        Tensor("QUERY", "BYTES"),
        _optional("DECODER_QUERY", "BYTES"),
        _optional("IMAGE_BYTES", "UINT8", -1, -1, -1, -1),
        _optional("IMAGE_URL", "BYTES", -1),
        _optional("IMAGE_SIZES", "INT64", -1, 2),
        _optional("VIDEO_BYTES", "UINT8", -1, -1, -1, -1),
        Tensor("REQUEST_OUTPUT_LEN", "INT32"),
        _optional("BAD_WORDS_DICT", "BYTES", -1),
        _optional("STOP_WORDS_DICT", "BYTES", -1),
        _optional("EMBEDDING_BIAS_WORDS", "BYTES", -1),
        _optional("EMBEDDING_BIAS_WEIGHTS", "FP32", -1),
        _optional("END_ID", "INT32"),
        _optional("PAD_ID", "INT32"),
        _optional("PROMPT_TABLE_EXTRA_ID", "UINT64"),
        Tensor("PROMPT_IDS", "INT32", (-1,), optional=True, extension=True),
    ),
    outputs=(
        Tensor("INPUT_ID", "INT32", (-1,)),
        Tensor("REQUEST_INPUT_LEN", "INT32"),
        Tensor("DECODER_INPUT_ID", "INT32", (-1,)),
        Tensor("REQUEST_DECODER_INPUT_LEN", "INT32"),
        Tensor("BAD_WORDS_IDS", "INT32", (2, -1)),
        Tensor("STOP_WORDS_IDS", "INT32", (2, -1)),
        Tensor("EMBEDDING_BIAS", "FP32", (-1,)),
        Tensor("REQUEST_OUTPUT_LEN", "INT32", (-1,)),
        Tensor("OUT_END_ID", "INT32"),
        Tensor("OUT_PAD_ID", "INT32"),
        Tensor("OUT_PROMPT_TABLE_EXTRA_IDS", "UINT64", (-1,)),
        Tensor("PIXEL_VALUES", "FP16", (-1, -1, -1, -1)),
        Tensor("ASPECT_RATIO_IDS", "INT64", (-1,)),
        Tensor("ASPECT_RATIO_MASK", "INT64", (-1, -1)),
        Tensor("CROSS_ATTENTION_MASK", "INT64", (-1, -1, -1)),
        Tensor("IMAGE_SIZES", "INT64", (-1, 2)),
        Tensor("IS_VIDEO_INPUT", "BOOL"),
        Tensor("ATTENTION_MASK", "INT64", (-1,)),
        Tensor("IMAGE_GRID_THW", "INT64", (3,)),
        Tensor("VISION_INPUT_ID", "INT32", (-1,)),
    ),
)

_PERF_OUTPUTS = (
    Tensor("kv_cache_alloc_new_blocks", "INT32"),
    Tensor("kv_cache_reused_blocks", "INT32"),
    Tensor("kv_cache_alloc_total_blocks", "INT32"),
    Tensor("arrival_time_ns", "INT64"),
    Tensor("first_scheduled_time_ns", "INT64"),
    Tensor("first_token_time_ns", "INT64"),
    Tensor("last_token_time_ns", "INT64"),
    Tensor("acceptance_rate", "FP32"),
    Tensor("total_accepted_draft_tokens", "INT32"),
    Tensor("total_draft_tokens", "INT32"),
    Tensor("num_input_tokens", "INT32"),
    Tensor("num_output_tokens", "INT32"),
)
_LOG_PROB_OUTPUTS = (
    Tensor("cum_log_probs", "FP32", (-1,)),
    Tensor("output_log_probs", "FP32", (-1, -1)),
    Tensor("context_logits", "FP32", (-1, -1)),
    Tensor("generation_logits", "FP32", (-1, -1, -1)),
    Tensor("batch_index", "INT32"),
    Tensor("sequence_index", "INT32"),
)
# What NVIDIA's backend does not tell: why a sequence ended and how much of its prompt was cached, with its
# last response; and, if the request asks, for each token its log prob and those of the likeliest beside it,
# and the ids that the response has, without padding.
_TOLD_BESIDE = (
    Tensor("finish_reason", "BYTES", extension=True),
    Tensor("cached_tokens", "INT32", extension=True),
    Tensor("top_log_probs", "FP32", (-1, -1, -1), extension=True),
    Tensor("token_ids", "INT32", (-1,), extension=True),
)
# If the request asks, with the last response: the steps that its first sequence was part of, a row each.
_STEPS_TOLD = Tensor("engine_steps", "INT64", (-1, 6), extension=True)

TENSORRT_LLM = ModelContract(
    inputs=(
        _ragged("input_ids", "INT32", -1),
        _ragged("encoder_input_features", "FP16", -1, -1),
        _option("encoder_output_lengths", "INT32"),
        Tensor("input_lengths", "INT32", scalar=True),
        Tensor("request_output_len", "INT32", scalar=True),
        _option("num_return_sequences", "INT32"),
        _ragged("draft_input_ids", "INT32", -1),
        _ragged("decoder_input_ids", "INT32", -1),
        _option("decoder_input_lengths", "INT32"),
        _ragged("draft_logits", "FP32", -1, -1),
        _option("draft_acceptance_threshold", "FP32"),
        _option("end_id", "INT32"),
        _option("pad_id", "INT32"),
        _ragged("stop_words_list", "INT32", 2, -1),
        _ragged("bad_words_list", "INT32", 2, -1),
        _ragged("embedding_bias", "FP32", -1),
        _option("beam_width", "INT32"),
        _option("temperature", "FP32"),
        _option("runtime_top_k", "INT32"),
        _option("runtime_top_p", "FP32"),
        _option("runtime_top_p_min", "FP32"),
        _option("runtime_top_p_decay", "FP32"),
        _option("runtime_top_p_reset_ids", "INT32"),
        _option("len_penalty", "FP32"),
        _option("early_stopping", "BOOL"),
        _option("repetition_penalty", "FP32"),
        _option("min_tokens", "INT32"),
        _option("beam_search_diversity_rate", "FP32"),
        _option("presence_penalty", "FP32"),
        _option("frequency_penalty", "FP32"),
        _option("seed", "UINT64"),
        _option("return_log_probs", "BOOL"),
        _option("return_context_logits", "BOOL"),
        _option("return_generation_logits", "BOOL"),
        _option("return_perf_metrics", "BOOL"),
        _option("return_num_input_tokens", "BOOL"),
        _option("return_num_output_tokens", "BOOL"),
        _option("exclude_input_in_output", "BOOL"),
        _option("stop", "BOOL"),
        _option("streaming", "BOOL"),
        _ragged("prompt_embedding_table", "FP16", -1, -1),
        _ragged("prompt_table_extra_ids", "UINT64", -1),
        _option("prompt_vocab_size", "INT32"),
        _ragged("cross_attention_mask", "BOOL", -1, -1),
        _optional("mrope_rotary_cos_sin", "FP32", -1),
        _optional("mrope_position_deltas", "INT64"),
        _option("lora_task_id", "UINT64"),
        _ragged("lora_weights", "FP16", -1, -1),
        _ragged("lora_config", "INT32", -1, 3),
        _ragged("context_phase_params", "UINT8", -1),
        _ragged("skip_cross_attn_blocks", "BOOL", 1),
        _ragged("retention_token_range_starts", "INT32", -1),
        _ragged("retention_token_range_ends", "INT32", -1),
        _ragged("retention_token_range_priorities", "INT32", -1),
        _ragged("retention_token_range_durations_ms", "INT32", -1),
        _ragged("retention_decode_priority", "INT32", 1),
        _ragged("retention_decode_duration_ms", "INT32", 1),
        _ragged("guided_decoding_guide_type", "BYTES", 1),
        _ragged("guided_decoding_guide", "BYTES", 1),
        _ragged("lookahead_window_size", "INT32", 1),
        _ragged("lookahead_ngram_size", "INT32", 1),
        _ragged("lookahead_verification_set_size", "INT32", 1),
        # Files of images, one for each place that the prompt has for one.
        Tensor("images", "BYTES", (-1,), optional=True, ragged=True, extension=True),
    ),
    outputs=(
        Tensor("output_ids", "INT32", (-1, -1)),
        Tensor("sequence_length", "INT32", (-1,)),
        *_LOG_PROB_OUTPUTS,
        Tensor("context_phase_params", "UINT8", (-1,)),
        *_PERF_OUTPUTS,
        *_TOLD_BESIDE,
        Tensor("top_token_ids", "INT32", (-1, -1, -1), extension=True),
        Tensor("engine_report", "BYTES", extension=True),
        _STEPS_TOLD,
    ),
)

# The bytes of each token and of those beside it, and how many characters of the text each token completed.
_TOKENS_SHOWN = (
    Tensor("top_tokens", "BYTES", (-1, -1), extension=True),
    Tensor("token_characters", "INT32", (-1,), extension=True),
)

POSTPROCESSING = ModelContract(
    inputs=(
        Tensor("TOKENS_BATCH", "INT32", (-1, -1)),
        Tensor("SEQUENCE_LENGTH", "INT32", (-1,)),
        Tensor("TOP_TOKEN_IDS", "INT32", (-1, -1, -1), optional=True, extension=True),
        Tensor("BATCH_INDEX", "INT32", optional=True, extension=True),
        Tensor("SEQUENCE_INDEX", "INT32", optional=True, extension=True),
    ),
    outputs=(Tensor("OUTPUT", "BYTES", (-1,)), *_TOKENS_SHOWN),
)

ENSEMBLE = ModelContract(
    inputs=(
        Tensor("text_input", "BYTES"),
        _optional("decoder_text_input", "BYTES"),
        Tensor("max_tokens", "INT32"),
        _optional("num_return_sequences", "INT32"),
        _optional("bad_words", "BYTES", -1),
        _optional("stop_words", "BYTES", -1),
        _optional("exclude_input_in_output", "BOOL"),
        _optional("end_id", "INT32"),
        _optional("pad_id", "INT32"),
        _optional("top_k", "INT32"),
        _optional("top_p", "FP32"),
        _optional("temperature", "FP32"),
        _optional("length_penalty", "FP32"),
        _optional("repetition_penalty", "FP32"),
        _optional("min_tokens", "INT32"),
        _optional("presence_penalty", "FP32"),
        _optional("frequency_penalty", "FP32"),
        _optional("seed", "UINT64"),
        _optional("return_log_probs", "BOOL"),
        _optional("return_context_logits", "BOOL"),
        _optional("return_generation_logits", "BOOL"),
        _optional("return_perf_metrics", "BOOL"),
        _optional("return_num_input_tokens", "BOOL"),
        _optional("return_num_output_tokens", "BOOL"),
        _optional("beam_width", "INT32"),
        _optional("stream", "BOOL"),
        _optional("prompt_embedding_table", "FP16", -1, -1),
        _optional("prompt_table_extra_id", "UINT64"),
        _optional("prompt_vocab_size", "INT32"),
        _optional("embedding_bias_words", "BYTES", -1),
        _optional("embedding_bias_weights", "FP32", -1),
        _optional("lora_task_id", "UINT64"),
        _ragged("lora_weights", "FP16", -1, -1),
        _ragged("lora_config", "INT32", -1, 3),
        _ragged("guided_decoding_guide_type", "BYTES", 1),
        _ragged("guided_decoding_guide", "BYTES", 1),
        Tensor("prompt_ids", "INT32", (-1,), optional=True, extension=True),
        Tensor("images", "BYTES", (-1,), optional=True, extension=True),
        Tensor("context_phase_params", "UINT8", (-1,), optional=True, ragged=True, extension=True),
    ),
    outputs=(
        Tensor("text_output", "BYTES", (-1,)),
        *_LOG_PROB_OUTPUTS,
        *_PERF_OUTPUTS,
        *_TOLD_BESIDE,
        *_TOKENS_SHOWN,
        _STEPS_TOLD,
        Tensor("out_context_phase_params", "UINT8", (-1,), extension=True),
    ),
)

# Not of the shipped contract. Rows are texts or ids, never both; a reranker takes pairs of texts too, and its
# EMBEDDING is one score.
EMBEDDINGS = ModelContract(
    inputs=(
        _optional("TEXT", "BYTES"),
        _optional("TEXT_PAIR", "BYTES"),
        _ragged("INPUT_IDS", "INT32", -1),
        _optional("DIMENSIONS", "INT32"),
    ),
    outputs=(Tensor("EMBEDDING", "FP32", (-1,)), Tensor("TOKENS", "INT32")),
)

CONTRACTS = {
    "preprocessing": PREPROCESSING,
    "tensorrt_llm": TENSORRT_LLM,
    "postprocessing": POSTPROCESSING,
    "ensemble": ENSEMBLE,
    "embeddings": EMBEDDINGS,
}
