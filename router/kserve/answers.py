"""What a model answers, read by the contract's tables: outputs that may be shown, and nothing else."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from python_backend.wire.errors import ErrorKind, InflightError
from router.kserve.elements import decode, is_whole
from router.kserve.tensors import refuse

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from router.kserve.tensors import Tensors


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
        raise refuse(f"output '{name}' has another shape in each row: ask for it in a stream", name)
    rows = sum(part.shape[0] for part in parts)
    return Output(name, first.dtype, (rows, *first.shape[1:]), b"".join(part.raw for part in parts))


def number(outputs: dict[str, Output], name: str) -> int:
    """The one number of an output, 0 where it is not there."""
    output = outputs.get(name)
    return 0 if output is None or not output.count else int(output.elements()[0])


def pick(outputs: dict[str, Output], names: Collection[str]) -> tuple[Output, ...]:
    return tuple(output for name, output in outputs.items() if name in names)
