"""The inputs of a language model by the ensemble's contract: checked, completed, and what they ask for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from python_backend.wire import codec
from python_backend.wire.tensors import ENSEMBLE
from router.core.generation import MAX_NEW_TOKENS, GenerationCall
from router.kserve.answers import Output
from router.kserve.parameters import EMPTY_FINAL
from router.kserve.tensors import Value, Values, by_name, refuse
from router.request.text import need_of
from router.triton.messages import STOP_WORDS
from router.triton.protocol import service_pb2

if TYPE_CHECKING:
    from router.admission.demand import Need

MAX_SEQUENCES = 64
# Each is tokenized by itself, and the prompts of others wait meanwhile.
_MOST_WORDS = 2048
# What other servers of the contract have too, and why an answer ended; the rest is between router and engine.
INPUTS = by_name(tensor for tensor in ENSEMBLE.inputs if not tensor.extension)
OUTPUTS = by_name(
    tensor for tensor in ENSEMBLE.outputs if not tensor.extension or tensor.name == "finish_reason"
)
PERFORMANCE = frozenset(
    name
    for name in OUTPUTS
    if name.startswith(("kv_cache_", "total_", "acceptance_")) or name.endswith("_time_ns")
)
NO_FIGURES = {
    name: Output(name, OUTPUTS[name].dtype, (1, 1), codec.encode(OUTPUTS[name].dtype, [0]))
    for name in OUTPUTS
    if name in PERFORMANCE
}
# The flags that the router sets for its own account, and the outputs that come of them.
_ACCOUNT = {
    "return_num_input_tokens": frozenset({"num_input_tokens"}),
    "return_num_output_tokens": frozenset({"num_output_tokens"}),
    "return_perf_metrics": PERFORMANCE,
}
# Outputs that are as long as a prompt or an answer, by what asks for them.
_UNEVEN = {
    "return_log_probs": "output_log_probs",
    "return_context_logits": "context_logits",
    "return_generation_logits": "generation_logits",
}


def complete(values: Values, whole: bool) -> Values:
    """The inputs that are sent: the client's, with what the router needs to know and Triton to batch."""
    rows = values["text_input"].rows
    _check_amounts(values)
    sent = dict(values)
    counts = [min(count, MAX_NEW_TOKENS) for count in values["max_tokens"].elements]
    sent["max_tokens"] = _each(counts, "INT32")
    sent["stop_words"] = _padded(values.get("stop_words"), rows)
    for name in _ACCOUNT:
        sent[name] = _each([True] * rows)
    if whole:
        sent["stream"] = _each([False] * rows)
    if "exclude_input_in_output" not in sent:
        sent["exclude_input_in_output"] = _each([False] * rows)
    return {name: sent[name] for name in INPUTS if name in sent}


def _check_amounts(values: Values) -> None:
    for name in ("stop_words", "bad_words"):
        if name in values and len(values[name].elements) > _MOST_WORDS:
            found = f"{len(values[name].elements)} words"
            raise refuse(f"input '{name}' has {found}; allowed: up to {_MOST_WORDS} in all rows", name)
    if min(values["max_tokens"].elements) < 1:
        raise refuse(f"input 'max_tokens': allowed are 1 to {MAX_NEW_TOKENS}", "max_tokens")
    sequences = sequences_of(values)
    if min(sequences) < 1 or sum(sequences) > MAX_SEQUENCES:
        allowed = f"1 and more, up to {MAX_SEQUENCES} in all rows together"
        raise refuse(f"input 'num_return_sequences': allowed are {allowed}", "num_return_sequences")


def sequences_of(values: Values) -> list[int]:
    given = values.get("num_return_sequences")
    return [1] * values["text_input"].rows if given is None else given.elements


def _each(elements: list[Any], dtype: str = "BOOL") -> Value:
    return Value(dtype, (len(elements), 1), elements)


def _padded(words: Value | None, rows: int) -> Value:
    """Triton batches only requests of the same shapes, so there are always so many words; empty ones pass."""
    found = [[]] * rows if words is None else [words.row(index) for index in range(rows)]
    width = -(-max(len(found[0]), 1) // STOP_WORDS) * STOP_WORDS
    elements = [word for row in found for word in (*row, *[b""] * (width - len(row)))]
    return Value("BYTES", (rows, width), elements)


def check_joinable(values: Values, shown: frozenset[str]) -> None:
    """One response holds all rows only where they have one shape."""
    if sum(sequences_of(values)) > 1:
        for flag, name in _UNEVEN.items():
            if name in shown and flag in values and any(values[flag].elements):
                raise refuse(
                    f"output '{name}' has a different shape in each row: request it as a stream", name
                )


def need(values: Values, context_tokens: int) -> Need:
    calls = []
    for text, most, sequences in zip(
        values["text_input"].elements, values["max_tokens"].elements, sequences_of(values), strict=True
    ):
        prompt = text.decode()
        for number_of_it in range(sequences):
            shares = number_of_it > 0
            calls.append(
                GenerationCall(request_id="", prompt=prompt, max_tokens=most, seed=0, shares_prompt=shares)
            )
    return need_of(calls, context_tokens)


def echoes(values: Values) -> list[bool]:
    """Of each row, whether its output begins with the prompt and counts it."""
    excluded = values["exclude_input_in_output"].elements
    return [not (out or stream) for out, stream in zip(excluded, streamed(values), strict=True)]


def streamed(values: Values) -> list[bool]:
    """Of each row, whether its output comes token by token."""
    return values["stream"].elements if "stream" in values else [False] * values["text_input"].rows


def shown_outputs(values: Values, asked: frozenset[str]) -> frozenset[str]:
    """What the client asked for by name, or else all that Triton itself would send it."""
    if asked:
        return asked
    wanted = [flag for flag in _ACCOUNT if flag in values and any(values[flag].elements)]
    hidden = frozenset().union(*(names for flag, names in _ACCOUNT.items() if flag not in wanted))
    return frozenset(OUTPUTS) - hidden


def build(values: Values, request_id: str, tenant: str) -> Any:
    """Without the model's name, which the pipeline fills in."""
    message = service_pb2.ModelInferRequest(id=request_id)
    message.parameters[EMPTY_FINAL].bool_param = True
    message.parameters["tenant"].string_param = tenant
    for name, value in values.items():
        message.inputs.add(name=name, datatype=value.dtype, shape=value.shape)
        message.raw_input_contents.append(codec.encode(value.dtype, value.elements))
    return message
