"""The `parameters` of `tensorrt_llm` as the C++ backend reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.packaging.trtllm.edition import FALSE, TRUE, Edition, Key
from launcher.packaging.trtllm.findings import Finding, Verdict

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MODEL = "tensorrt_llm"
# They may be empty, but not missing: their place in the config is asked for.
_LOOKED_UP = ("tokenizer_dir", "xgrammar_tokenizer_info_path", "guided_decoding_backend")
_LOOKAHEAD = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")


def check_parameters(given: Mapping[str, str], edition: Edition) -> Iterator[Finding]:
    values = {key: value for key, value in given.items() if _is_given(value)}
    for name, key in edition.keys.items():
        if name in values:
            yield from _check_value(name, values[name], key)
    yield from _check_required(values)
    for name in (each for each in _LOOKED_UP if each not in given):
        what = f"parameter {name} is absent, and the model does not load without it"
        yield Finding(MODEL, Verdict.FAILS, what, "add it; it may be empty")
    yield from _check_together(values)
    ours = sorted(key for key in given if key.startswith("inflight_"))
    if ours:
        what = f"parameters {', '.join(ours)}"
        yield Finding(MODEL, Verdict.IGNORED, what, "they configure our engine; they may stay")
    for unknown in sorted(given.keys() - edition.keys.keys() - set(ours)):
        what = f"parameter {unknown} is unknown"
        yield Finding(MODEL, Verdict.IGNORED, what, "remove it, or check its spelling")


def _is_given(value: str) -> bool:
    """An unfilled placeholder fails to be read as what it should be, and means the default."""
    return bool(value) and not (value.startswith("${") and value.endswith("}"))


def _check_value(name: str, value: str, key: Key) -> Iterator[Finding]:
    if not _reads_as(value, key.kind):
        wanted = "one of " + ", ".join((*TRUE, *FALSE)) if key.kind == "bool" else f"a number ({key.kind})"
        default = key.default or "unset"
        what = f"parameter {name} is {value!r}, and is treated as {default}"
        yield Finding(MODEL, Verdict.DIFFERS, what, f"write {wanted}")
    elif key.allowed and value not in key.allowed:
        allowed = ", ".join(key.allowed)
        verdict = Verdict.DIFFERS if key.only_warns else Verdict.FAILS
        counts = f", and is treated as {key.default or 'unset'}" if key.only_warns else ""
        yield Finding(MODEL, verdict, f"parameter {name} is {value!r}{counts}", f"allowed: {allowed}")


def _reads_as(value: str, kind: str) -> bool:
    try:
        if kind == "int":
            int(value)
        if kind == "float":
            float(value)
    except ValueError:
        return False
    return kind != "bool" or value in (*TRUE, *FALSE)


def _check_required(values: Mapping[str, str]) -> Iterator[Finding]:
    if "gpt_model_type" not in values:
        remedy = "set inflight_fused_batching"
        yield Finding(MODEL, Verdict.FAILS, "parameter gpt_model_type is not set", remedy)
    if "gpt_model_path" not in values and "encoder_model_path" not in values:
        remedy = "set the folder of an engine (inflight trtllm build)"
        yield Finding(MODEL, Verdict.FAILS, "parameter gpt_model_path is not set", remedy)
    if values.get("gpt_model_type") in ("V1", "v1"):
        remedy = "set inflight_fused_batching"
        yield Finding(MODEL, Verdict.DIFFERS, "gpt_model_type V1 batches statically", remedy)


def _check_together(values: Mapping[str, str]) -> Iterator[Finding]:
    if values.get("guided_decoding_backend") and "xgrammar_tokenizer_info_path" not in values:
        remedy = "set the file with encoded_vocab, tokenizer_str and stop_token_ids"
        what = (
            "guided_decoding_backend is set and xgrammar_tokenizer_info_path is not: guided decoding is off"
        )
        yield Finding(MODEL, Verdict.DIFFERS, what, remedy)
    if values.get("decoding_mode") == "lookahead":
        for key in _LOOKAHEAD:
            if key not in values:
                yield Finding(
                    MODEL, Verdict.FAILS, f"decoding_mode is lookahead and {key} is not set", "set it"
                )
    if values.get("guided_decoding_backend") is None:
        what = "requests with a guide are refused: guided_decoding_backend is not set"
        yield Finding(MODEL, Verdict.DIFFERS, what, "set xgrammar and xgrammar_tokenizer_info_path")
    if values.get("normalize_log_probs") not in FALSE:
        what = "normalize_log_probs is treated as true: cum_log_probs are divided by the answer's length"
        yield Finding(MODEL, Verdict.DIFFERS, what, "set false, as our engine has it")
