"""What a model answers: outputs read by the contract's tables, and text as far as the safety check allows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from python_backend.wire import codec
from python_backend.wire.errors import ErrorKind, InflightError
from router.kserve.tensors import Tensors, Values, decode, is_whole, refuse

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from router.safety.guard import Safety


@dataclass(frozen=True, slots=True)
class Output:
    """One output: bytes as Triton writes them, whose length fits the shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    raw: bytes

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    def elements(self) -> list[Any]:
        """Plain values; a text as a string."""
        elements = decode(self.dtype, self.raw)
        if self.dtype == "BYTES":
            return [element.decode("utf-8", "replace") for element in elements]
        return elements


@dataclass(frozen=True, slots=True)
class Answer:
    """One response: what may be shown of it, and to which row and sequence of the request it belongs.

    `final` is the last one of its request; a stream may end with one that has no outputs.
    """

    outputs: tuple[Output, ...]
    final: bool
    row: int = 0
    sequence: int = 0


def read_outputs(known: Tensors, response: Any) -> dict[str, Output]:
    """The outputs that the contract names, checked; others are left out."""
    if len(response.outputs) != len(response.raw_output_contents):
        raise _unreadable()
    outputs: dict[str, Output] = {}
    for given, raw in zip(response.outputs, response.raw_output_contents, strict=True):
        tensor = known.get(given.name)
        if tensor is None:
            continue
        output = Output(given.name, given.datatype, tuple(given.shape), raw)
        if given.datatype != tensor.dtype or not _is_whole(output):
            raise _unreadable()
        outputs[given.name] = output
    return outputs


def _is_whole(output: Output) -> bool:
    return all(size >= 0 for size in output.shape) and is_whole(output.dtype, output.count, output.raw)


def _unreadable() -> InflightError:
    return InflightError(ErrorKind.ENGINE_FAILED, "the model's answer could not be read")


class Texts:
    """The texts of one request, by row and sequence."""

    def __init__(self) -> None:
        self._pieces: dict[tuple[int, int], list[str]] = {}

    def add(self, row: int, sequence: int, outputs: dict[str, Output]) -> None:
        if (output := outputs.get("text_output")) is not None:
            self._pieces.setdefault((row, sequence), []).extend(output.elements())

    def all(self) -> list[str]:
        return ["".join(self._pieces[which]) for which in sorted(self._pieces)]


def join(answers: Sequence[Answer]) -> tuple[Output, ...]:
    """One answer out of the answers to all rows and sequences, in their order, below one another."""
    told = sorted((each for each in answers if each.outputs), key=lambda each: (each.row, each.sequence))
    if len(told) <= 1:
        return told[0].outputs if told else ()
    parts = [{output.name: output for output in each.outputs} for each in told]
    in_all = [name for name in parts[0] if all(name in part for part in parts)]
    return tuple(_below(name, [part[name] for part in parts]) for name in in_all)


def _below(name: str, parts: Sequence[Output]) -> Output:
    first = parts[0]
    if any(part.shape[1:] != first.shape[1:] for part in parts):
        raise refuse(f"output '{name}' has a different shape in each row: request it as a stream", name)
    rows = sum(part.shape[0] for part in parts)
    return Output(name, first.dtype, (rows, *first.shape[1:]), b"".join(part.raw for part in parts))


def number(outputs: dict[str, Output], name: str) -> int:
    """The one number of an output, 0 where it is not there."""
    output = outputs.get(name)
    return 0 if output is None or not output.count else int(output.elements()[0])


def pick(outputs: dict[str, Output], names: Collection[str]) -> tuple[Output, ...]:
    return tuple(output for name, output in outputs.items() if name in names)


FILTERED = "content_filter"
_TEXT, _FINISH = "text_output", "finish_reason"
_PROMPTS = ("text_input", "decoder_text_input")
_LOGITS = ("return_context_logits", "return_generation_logits")


async def check_prompts(safety: Safety, model: str, values: Values, sequences: int, tenant: str) -> None:
    """Refuses forbidden prompts, and whatever would tell of an answer past the check."""
    if not safety.applies_to(model):
        return
    for flag in _LOGITS:
        if flag in values and any(values[flag].elements):
            raise _not_checked(flag, "logits reveal tokens that the check has not passed")
    if sequences > 1:
        raise _not_checked("num_return_sequences", "send one row and one sequence per request")
    prompts = [values[name].elements for name in _PROMPTS if name in values]
    await safety.admit(model, [text.decode() for texts in prompts for text in texts], tenant)


def _not_checked(name: str, why: str) -> InflightError:
    message = f"input '{name}': not allowed with this model, whose prompts and answers are checked: {why}"
    return InflightError(ErrorKind.UNSUPPORTED, message, name)


class GuardedText:
    """The text of one answer, let out as far as the check has cleared it."""

    def __init__(self, safety: Safety | None, model: str) -> None:
        self._guard = None if safety is None else safety.guard(model)

    @property
    def tripped(self) -> bool:
        return self._guard is not None and self._guard.tripped

    def let(self, outputs: dict[str, Output], final: bool) -> dict[str, Output]:
        """The outputs with the text that may leave; a rule that ends the answer takes its reason's place."""
        guard = self._guard
        if guard is None:
            return outputs
        given = "".join(outputs[_TEXT].elements()) if _TEXT in outputs else ""
        text = guard.feed(given)
        if not guard.tripped and (final or _FINISH in outputs):
            text += guard.flush()
        let = dict(outputs)
        if text or _TEXT in outputs:
            let[_TEXT] = _text(_TEXT, text)
        if guard.tripped:
            let[_FINISH] = _text(_FINISH, FILTERED)
        return let


def _text(name: str, text: str) -> Output:
    return Output(name, "BYTES", (1,), codec.encode("BYTES", [text]))
