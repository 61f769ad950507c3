"""Whether NVIDIA's container would serve a model repository, told from its configs alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from launcher.packaging.repository import ENGINE, PIPELINE
from launcher.packaging.trtllm.findings import Finding, Verdict
from launcher.packaging.trtllm.parameters import check_parameters
from launcher.packaging.trtllm.tensors import check_tensors, type_name
from router.triton.protocol import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from launcher.packaging.trtllm.edition import Edition

POSTPROCESSING = "postprocessing"
MODELS = ("preprocessing", ENGINE, POSTPROCESSING, PIPELINE)
_KINDS = model_config_pb2.ModelInstanceGroup


def check_models(configs: Mapping[str, Any], edition: Edition) -> list[Finding]:
    """`configs` are parsed config.pbtxt by the names of their models."""
    found: list[Finding] = []
    for name in MODELS:
        if name not in configs:
            found.append(Finding(name, Verdict.FAILS, "the model is missing", "all four are needed"))
            continue
        config = configs[name]
        found += check_tensors(name, config, edition)
        found += _check_kind(name, config)
        found += _check_batching(name, config, edition)
    if ENGINE in configs:
        parameters = {key: value.string_value for key, value in configs[ENGINE].parameters.items()}
        found += _check_engine(configs[ENGINE])
        found += check_parameters(parameters, edition)
    if PIPELINE in configs:
        found += _check_steps(configs, edition)
    found += [
        Finding(
            name, Verdict.IGNORED, "the model is not part of the contract", "it is loaded like the others"
        )
        for name in sorted(configs.keys() - set(MODELS))
    ]
    return found


def _check_kind(name: str, config: Any) -> Iterator[Finding]:
    if config.max_batch_size < 1:
        remedy = "set 1 or more: dims have no batch dimension"
        yield Finding(name, Verdict.FAILS, f"max_batch_size is {config.max_batch_size}", remedy)
    if name == PIPELINE:
        if config.platform != "ensemble":
            yield Finding(name, Verdict.FAILS, f"platform is {config.platform!r}", 'set platform: "ensemble"')
        return
    wanted = "tensorrtllm" if name == ENGINE else "python"
    if config.backend != wanted:
        yield Finding(name, Verdict.FAILS, f"backend is {config.backend!r}", f'set backend: "{wanted}"')
    if config.runtime and name == ENGINE:
        what = f"runtime is {config.runtime!r}, which is loaded instead of NVIDIA's library"
        yield Finding(name, Verdict.FAILS, what, "remove it: libtriton_tensorrtllm.so is found without it")


def _check_batching(name: str, config: Any, edition: Edition) -> Iterator[Finding]:
    instances = sum(group.count or 1 for group in config.instance_group) or 1
    batching = config.dynamic_batching if config.HasField("dynamic_batching") else None
    policy = batching.default_queue_policy if batching is not None else None
    policies = [] if batching is None else [policy, *batching.priority_queue_policy.values()]
    has_timeout = any(each.default_timeout_microseconds for each in policies)
    if has_timeout and "queue timeouts starve" in edition.traps:
        what = f"a queue timeout; Triton {edition.triton} slows down with it until the model is loaded again"
        yield Finding(name, Verdict.FAILS, what, "remove default_timeout_microseconds")
    if name == POSTPROCESSING and (batching is not None or instances > 1):
        kept = batching is not None and batching.preserve_ordering
        broken = "preserve_ordering is broken" in edition.traps
        if not kept or broken:
            why = (
                f"preserve_ordering does not keep it in Triton {edition.triton}"
                if kept
                else "nothing keeps it"
            )
            what = f"the pieces of a stream may change their order: {why}"
            yield Finding(name, Verdict.FAILS, what, "one instance, and no dynamic_batching")
    if name == ENGINE and policy is not None and policy.max_queue_size:
        what = (
            f"max_queue_size {policy.max_queue_size} applies twice: in Triton's queue and in the executor's"
        )
        yield Finding(name, Verdict.DIFFERS, what, "count on up to twice as many waiting, or set 0")


def _check_engine(config: Any) -> Iterator[Finding]:
    if not config.model_transaction_policy.decoupled:
        what = "not decoupled: streaming and requests of several rows are refused"
        yield Finding(ENGINE, Verdict.DIFFERS, what, "set model_transaction_policy { decoupled: true }")
    if sum(group.count or 1 for group in config.instance_group) > 1:
        yield Finding(ENGINE, Verdict.FAILS, "several instances of one engine", "count: 1; it batches itself")
    if any(group.kind not in (_KINDS.KIND_CPU, _KINDS.KIND_AUTO) for group in config.instance_group):
        what = "instance_group names a kind, but gpu_device_ids selects the GPUs"
        yield Finding(ENGINE, Verdict.DIFFERS, what, "set kind: KIND_CPU")


def _check_steps(configs: Mapping[str, Any], edition: Edition) -> Iterator[Finding]:
    """Every tensor that a step takes must come from somewhere, unless it may be missing."""
    steps = configs[PIPELINE].ensemble_scheduling.step
    missing = [name for name in MODELS[:3] if name not in {step.model_name for step in steps}]
    for name in missing:
        yield Finding(PIPELINE, Verdict.FAILS, f"no step {name}", "add it")
    engine = {tensor.name for tensor in edition.contract(ENGINE).outputs}
    sent = {tensor.name for tensor in configs[PIPELINE].input}
    for step in steps:
        knows = {name for name in step.output_map if step.model_name != ENGINE or name in engine}
        sent |= {step.output_map[name] for name in knows}
    for step in steps:
        if step.model_name in configs:
            yield from _check_step(step, configs[step.model_name], sent)
    yield from _check_types(configs)


def _check_types(configs: Mapping[str, Any]) -> Iterator[Finding]:
    """A tensor of the pipeline has one type, whoever makes it and whoever takes it."""
    pipeline = configs[PIPELINE]
    types = {each.name: (PIPELINE, type_name(each)) for each in (*pipeline.input, *pipeline.output)}
    for step in pipeline.ensemble_scheduling.step:
        config = configs.get(step.model_name)
        if config is None:
            continue
        for maps, tensors in ((step.input_map, config.input), (step.output_map, config.output)):
            for each in tensors:
                if each.name not in maps:
                    continue
                owner, wanted = types.setdefault(maps[each.name], (step.model_name, type_name(each)))
                if wanted != type_name(each):
                    what = f"{maps[each.name]} is TYPE_{wanted} in {owner} and TYPE_{type_name(each)} as "
                    what += f"{each.name} of {step.model_name}"
                    yield Finding(PIPELINE, Verdict.FAILS, what, "give both the same type")


def _check_step(step: Any, config: Any, sent: set[str]) -> Iterator[Finding]:
    inputs = {each.name: each for each in config.input}
    outputs = {each.name for each in config.output}
    of = f"step {step.model_name}"
    for name, tensor in step.input_map.items():
        if name not in inputs:
            yield Finding(PIPELINE, Verdict.FAILS, f"{of} has no input {name}", "correct the input_map")
        elif tensor not in sent and not inputs[name].optional:
            what = f"{of} waits for {tensor}, which NVIDIA's backend does not send"
            yield Finding(PIPELINE, Verdict.FAILS, what, f"make {name} optional, or do not map it")
    for name in step.output_map:
        if name not in outputs:
            yield Finding(PIPELINE, Verdict.FAILS, f"{of} has no output {name}", "correct the output_map")
    for name in [each.name for each in config.input if not each.optional and each.name not in step.input_map]:
        yield Finding(
            PIPELINE, Verdict.FAILS, f"{of} is not given its input {name}", "add it to the input_map"
        )
