"""The steps of the ensemble, and which of its tensors each of them reads and writes.

`ensembles/ensemble/config.pbtxt` is held against this table by a test.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from python_backend.wire.pools import CONTEXT_PARAMS, OUT_CONTEXT_PARAMS
from python_backend.wire.tensors import ENSEMBLE, TENSORRT_LLM


@dataclass(frozen=True, slots=True)
class Step:
    """A model inside the ensemble; the maps are from its own tensors to the ensemble's."""

    model: str
    input_map: Mapping[str, str]
    output_map: Mapping[str, str]
    is_decoupled: bool = False


# Between the steps: nobody outside sees them.
_PROMPT = {
    "input_ids": "_INPUT_ID",
    "input_lengths": "_REQUEST_INPUT_LEN",
    "decoder_input_ids": "_DECODER_INPUT_ID",
    "decoder_input_lengths": "_REQUEST_DECODER_INPUT_LEN",
    "request_output_len": "_REQUEST_OUTPUT_LEN",
    "end_id": "_PREPROCESSOR_END_ID",
    "pad_id": "_PREPROCESSOR_PAD_ID",
    "embedding_bias": "_EMBEDDING_BIAS",
    "prompt_table_extra_ids": "_OUT_PROMPT_TABLE_EXTRA_IDS",
    "stop_words_list": "_STOP_WORDS_IDS",
    "bad_words_list": "_BAD_WORDS_IDS",
}
_TOKENS = {
    "output_ids": "_TOKENS_BATCH",
    "sequence_length": "_SEQUENCE_LENGTH",
    "top_token_ids": "_TOP_TOKEN_IDS",
}
_RENAMED = {
    "runtime_top_k": "top_k",
    "runtime_top_p": "top_p",
    "len_penalty": "length_penalty",
    "streaming": "stream",
}
_TOLD = {CONTEXT_PARAMS: OUT_CONTEXT_PARAMS}


def _shared(own: tuple[str, ...], ensembles: tuple[str, ...]) -> dict[str, str]:
    """Tensors that the engine and the ensemble call the same."""
    return {name: name for name in own if name in ensembles}


_ENGINE_INPUTS = tuple(tensor.name for tensor in TENSORRT_LLM.inputs if tensor.name not in _PROMPT)
_ENGINE_OUTPUTS = tuple(tensor.name for tensor in TENSORRT_LLM.outputs)

STEPS = (
    Step(
        "preprocessing",
        {
            "QUERY": "text_input",
            "DECODER_QUERY": "decoder_text_input",
            "REQUEST_OUTPUT_LEN": "max_tokens",
            "BAD_WORDS_DICT": "bad_words",
            "STOP_WORDS_DICT": "stop_words",
            "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
            "EMBEDDING_BIAS_WEIGHTS": "embedding_bias_weights",
            "END_ID": "end_id",
            "PAD_ID": "pad_id",
            "PROMPT_TABLE_EXTRA_ID": "prompt_table_extra_id",
            "PROMPT_IDS": "prompt_ids",
        },
        {
            "INPUT_ID": "_INPUT_ID",
            "REQUEST_INPUT_LEN": "_REQUEST_INPUT_LEN",
            "DECODER_INPUT_ID": "_DECODER_INPUT_ID",
            "REQUEST_DECODER_INPUT_LEN": "_REQUEST_DECODER_INPUT_LEN",
            "BAD_WORDS_IDS": "_BAD_WORDS_IDS",
            "STOP_WORDS_IDS": "_STOP_WORDS_IDS",
            "EMBEDDING_BIAS": "_EMBEDDING_BIAS",
            "REQUEST_OUTPUT_LEN": "_REQUEST_OUTPUT_LEN",
            "OUT_END_ID": "_PREPROCESSOR_END_ID",
            "OUT_PAD_ID": "_PREPROCESSOR_PAD_ID",
            "OUT_PROMPT_TABLE_EXTRA_IDS": "_OUT_PROMPT_TABLE_EXTRA_IDS",
        },
    ),
    Step(
        "tensorrt_llm",
        {
            **_PROMPT,
            **_RENAMED,
            **_shared(_ENGINE_INPUTS, tuple(tensor.name for tensor in ENSEMBLE.inputs)),
        },
        {**_TOKENS, **_TOLD, **_shared(_ENGINE_OUTPUTS, tuple(tensor.name for tensor in ENSEMBLE.outputs))},
        is_decoupled=True,
    ),
    Step(
        "postprocessing",
        {
            "TOKENS_BATCH": "_TOKENS_BATCH",
            "SEQUENCE_LENGTH": "_SEQUENCE_LENGTH",
            "TOP_TOKEN_IDS": "_TOP_TOKEN_IDS",
            "BATCH_INDEX": "batch_index",
            "SEQUENCE_INDEX": "sequence_index",
        },
        {"OUTPUT": "text_output", "top_tokens": "top_tokens", "token_characters": "token_characters"},
    ),
)
