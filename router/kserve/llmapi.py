"""A language model by the contract of NVIDIA's LLM API model: the same job, by other names.

One prompt a request, in shapes without rows. While it streams, each response has the whole text so far, as
NVIDIA's has.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from python_backend.wire import codec
from python_backend.wire.llmapi import LLMAPI, SAMPLING
from router.core.generation import FINISH_REASONS
from router.kserve.answers import Answer, Output
from router.kserve.generation import GenerationJob
from router.kserve.offers import Asked, Delivery, Offer
from router.kserve.tensors import Value, Values, by_name, refuse

if TYPE_CHECKING:
    from router.core.record import Record
    from router.routing.models import ServedModel

INPUTS, OUTPUTS = by_name(LLMAPI.inputs), by_name(LLMAPI.outputs)
# As TensorRT-LLM's own SamplingParams have it.
_DEFAULT_TOKENS = 32
# Inputs of the ensemble's contract by those of this one.
_NAMES = {
    "text_input": "text_input",
    "streaming": "stream",
    "return_cumulative_logprob": "return_log_probs",
    f"{SAMPLING}stop": "stop_words",
    f"{SAMPLING}exclude_input_from_output": "exclude_input_in_output",
    **{
        f"{SAMPLING}{name}": name
        for name in (
            *("temperature", "top_k", "top_p", "frequency_penalty", "presence_penalty"),
            *("max_tokens", "seed", "return_perf_metrics"),
        )
    },
}
_TEXT, _FINISH = "text_output", "finish_reason"
# Outputs of this contract by those of the ensemble's, with what has to be asked for them.
_TOLD = {
    _TEXT: (_TEXT, None),
    _FINISH: (_FINISH, "return_finish_reason"),
    "cum_log_probs": ("cumulative_logprob", "return_cumulative_logprob"),
    "kv_cache_reused_blocks": ("kv_cache_reused_block", f"{SAMPLING}return_perf_metrics"),
    **{
        name: (name, f"{SAMPLING}return_perf_metrics")
        for name in OUTPUTS
        if name.startswith(("kv_cache_alloc_", "total_", "acceptance_")) or name.endswith("_time_ns")
    },
}


def llmapi_offer(served: ServedModel) -> Offer:
    return Offer(served, INPUTS, OUTPUTS, 0, True, partial(_job, served), platform="llmapi")


def _job(served: ServedModel, asked: Asked, record: Record, whole: bool, delivery: Delivery) -> GenerationJob:
    told = Renamed(delivery, asked.values, asked.outputs)
    return GenerationJob(
        served, replace(asked, values=as_ensemble(asked.values), outputs=frozenset()), record, whole, told
    )


def as_ensemble(values: Values) -> Values:
    """The same request by the ensemble's contract, of one row; refuses by name what is not done here."""
    _refuse_undone(values)
    found = {
        _NAMES[name]: Value(value.dtype, (1, *value.shape), value.elements)
        for name, value in values.items()
        if name in _NAMES
    }
    found.setdefault("max_tokens", Value("INT32", (1, 1), [_DEFAULT_TOKENS]))
    return found


def _refuse_undone(values: Values) -> None:
    if len(values["text_input"].elements) != 1:
        count = len(values["text_input"].elements)
        raise refuse(f"input 'text_input' has {count} texts; allowed: one per request", "text_input")
    best_of = values.get(f"{SAMPLING}best_of")
    if best_of is not None and best_of.elements != [1]:
        name = f"{SAMPLING}best_of"
        raise refuse(f"input '{name}' is {best_of.elements[0]}; allowed: 1", name)
    undone = {
        "image_url": "send images to the chat endpoint",
        "lora_id": "an adapter is a separate model, BASE:NAME",
        "lora_name": "an adapter is a separate model, BASE:NAME",
        "lora_path": "an adapter is a separate model, BASE:NAME",
        "lora_ckpt_source": "an adapter is a separate model, BASE:NAME",
        "return_stop_reason": "the stop word that ended an answer is not reported",
        "stop": "cancel the request itself instead",
    }
    for name, why in undone.items():
        value = values.get(name)
        if value is not None and (value.dtype != "BOOL" or any(value.elements)):
            raise refuse(f"input '{name}' is not supported here: {why}", name)


class Renamed:
    """A delivery that tells what was asked for, by the names of this contract."""

    def __init__(self, delivery: Delivery, values: Values, asked: frozenset[str]) -> None:
        self._delivery = delivery
        self._asked = asked
        self._flags = {name for name, value in values.items() if value.dtype == "BOOL" and value.elements[0]}
        self._text = ""

    async def take(self, answer: Answer) -> None:
        await self._delivery.take(replace(answer, outputs=self._renamed(answer)))

    def fail(self, error: Exception) -> None:
        self._delivery.fail(error)

    def _renamed(self, answer: Answer) -> tuple[Output, ...]:
        """Nothing for a response that has nothing: it only ends a stream."""
        given = {output.name: output for output in answer.outputs}
        if not given:
            return ()
        if _TEXT in given:
            self._text += "".join(given[_TEXT].elements())
        ended = "".join(given[_FINISH].elements()) if _FINISH in given else ""
        given[_TEXT] = _texts(_TEXT, self._text)
        given[_FINISH] = _texts(_FINISH, FINISH_REASONS.get(ended, ended) or "None")
        found = []
        for name, output in given.items():
            own, flag = _TOLD.get(name, ("", None))
            if own and (flag is None or flag in self._flags) and (not self._asked or own in self._asked):
                found.append(Output(own, output.dtype, (output.count,), output.raw))
        return tuple(found)


def _texts(name: str, text: str) -> Output:
    return Output(name, "BYTES", (1,), codec.encode("BYTES", [text]))
