"""A config's tensors against the contract."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.packaging.trtllm.findings import Finding, Verdict
from router.triton.protocol import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from launcher.packaging.trtllm.edition import Edition
    from python_backend.wire.tensors import ModelContract, Tensor

# Without these the engine answers nothing, and the pipeline has no text.
_NEEDED_OUTPUTS = frozenset({"output_ids", "sequence_length", "OUTPUT", "text_output", "INPUT_ID"})


def check_tensors(model: str, config: Any, edition: Edition) -> Iterator[Finding]:
    contract, types = edition.contract(model), edition.open_types
    yield from _check_inputs(model, config, contract, types)
    yield from _check_outputs(model, config, contract, types)
    yield from _strangers(model, config, contract)


def _check_inputs(
    model: str, config: Any, contract: ModelContract, types: Mapping[str, tuple[str, ...]]
) -> Iterator[Finding]:
    found = {each.name: each for each in config.input}
    for tensor in contract.inputs:
        if (given := found.get(tensor.name)) is None:
            yield _missing_input(model, tensor)
            continue
        yield from _check_shape(model, "input", given, tensor, types)
        if given.HasField("reshape") != tensor.scalar:
            how = "takes [1] for []: reshape: { shape: [ ] }" if tensor.scalar else "has no reshape"
            yield Finding(
                model, Verdict.FAILS, f"input {tensor.name}: reshape differs", f"the contract {how}"
            )
        if given.allow_ragged_batch != tensor.ragged:
            value = str(tensor.ragged).lower()
            what = f"input {tensor.name}: allow_ragged_batch is not {value}"
            yield Finding(model, Verdict.DIFFERS, what, f"set it to {value}: batches form differently")
        if tensor.optional and not given.optional:
            what = f"input {tensor.name} is required here"
            yield Finding(model, Verdict.DIFFERS, what, "add optional: true; clients need not send it")
        if given.optional and not tensor.optional:
            what = f"input {tensor.name} is optional here"
            yield Finding(
                model, Verdict.DIFFERS, what, "without it every request fails later; leave it required"
            )


def _missing_input(model: str, tensor: Tensor) -> Finding:
    what = f"input {tensor.name} is missing"
    if not tensor.optional:
        return Finding(model, Verdict.FAILS, what, "declare it: each request has it")
    return Finding(model, Verdict.DIFFERS, what, "declare it, or requests that send it are refused")


def _check_outputs(
    model: str, config: Any, contract: ModelContract, types: Mapping[str, tuple[str, ...]]
) -> Iterator[Finding]:
    found = {each.name: each for each in config.output}
    for tensor in contract.outputs:
        if (given := found.get(tensor.name)) is not None:
            yield from _check_shape(model, "output", given, tensor, types)
        elif tensor.name in _NEEDED_OUTPUTS:
            yield Finding(
                model, Verdict.FAILS, f"output {tensor.name} is missing", "declare it: nothing works without"
            )
        else:
            what = f"output {tensor.name} is missing"
            yield Finding(model, Verdict.DIFFERS, what, "declare it, or clients cannot request it")


def _check_shape(
    model: str, side: str, given: Any, tensor: Tensor, types: Mapping[str, tuple[str, ...]]
) -> Iterator[Finding]:
    found, wanted = type_name(given), "STRING" if tensor.dtype == "BYTES" else tensor.dtype
    allowed = types.get(tensor.name, (wanted,))
    if found not in allowed:
        remedy = f"set data_type: {' or '.join(f'TYPE_{name}' for name in allowed)}"
        yield Finding(model, Verdict.FAILS, f"{side} {tensor.name} is TYPE_{found}", remedy)
    elif found != wanted:
        what = f"{side} {tensor.name} is TYPE_{found}, and TYPE_{wanted} for our engine"
        yield Finding(model, Verdict.DIFFERS, what, "it must be the type that the engine was built with")
    if tuple(given.dims) != tensor.dims:
        remedy = f"set dims: {list(tensor.dims)}"
        yield Finding(model, Verdict.FAILS, f"{side} {tensor.name} has dims {list(given.dims)}", remedy)


def _strangers(model: str, config: Any, contract: ModelContract) -> Iterator[Finding]:
    """The C++ backend looks for tensors by the names it knows, so what else is declared stays unused."""
    shipped = {tensor.name for tensor in (*contract.inputs, *contract.outputs)}
    required = [each.name for each in config.input if each.name not in shipped and not each.optional]
    for name in required:
        what = f"input {name} is not part of the contract, and required"
        yield Finding(model, Verdict.FAILS, what, "make it optional: clients of the contract do not send it")
    inputs = [each.name for each in config.input if each.name not in shipped and each.optional]
    outputs = [each.name for each in config.output if each.name not in shipped]
    if model != "tensorrt_llm":
        return  # our own Python models, which know them
    if inputs:
        yield Finding(
            model, Verdict.IGNORED, f"inputs {', '.join(inputs)}", "they are ignored; they may stay"
        )
    if outputs:
        what = f"outputs {', '.join(outputs)}"
        yield Finding(
            model, Verdict.IGNORED, what, "they are never sent, as optional ones may be; they may stay"
        )


def type_name(tensor: Any) -> str:
    return str(model_config_pb2.DataType.Name(tensor.data_type)).removeprefix("TYPE_")
