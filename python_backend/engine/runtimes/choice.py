"""Which runtime stands behind the contract: TensorRT-LLM where it is and can compute, else our own engine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from python_backend.engine.host.device import Gpu, Version, visible_gpus
from python_backend.engine.report import LoadingProgress, ignore_progress
from python_backend.engine.runtimes.runtime import Runtime
from python_backend.engine.runtimes.trtllm.package import LlmPackage, find_package
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import EngineParameters

# Before it, `tensorrt_llm.LLM` is another thing.
OLDEST_LLM: Version = (1, 3)


@dataclass(frozen=True, slots=True)
class Facts:
    """What decides: the package, the GPUs that the driver shows, and whether the model is a checkpoint."""

    package: LlmPackage | None = None
    gpus: tuple[Gpu, ...] = ()
    is_checkpoint: bool = True


@dataclass(frozen=True, slots=True)
class ChosenRuntime:
    """`name` is one of the values of `inflight_runtime`, and not "auto"."""

    name: str
    package: LlmPackage | None = None
    gpu: Gpu | None = None
    number: int = 0

    @property
    def computes_on(self) -> str:
        """For TensorRT-LLM, in words."""
        where = f"GPU {self.number} ({self.gpu.name})" if self.gpu else "the device that it chooses"
        return f"TensorRT-LLM {self.package.version_text if self.package else ''} on {where}"


def choose_runtime(parameters: EngineParameters) -> ChosenRuntime:
    """Refuses what this machine cannot do, saying what is missing."""
    if parameters.inflight_runtime not in ("auto", "llm"):
        return ChosenRuntime(parameters.inflight_runtime)
    package = find_package()
    if package is None and parameters.inflight_runtime == "auto":
        return ChosenRuntime("engine")  # nobody need wake the driver
    model = Path(parameters.gpt_model_path)
    return decide_runtime(parameters, Facts(package, visible_gpus(), (model / "config.json").is_file()))


def decide_runtime(parameters: EngineParameters, facts: Facts) -> ChosenRuntime:
    """`auto` takes TensorRT-LLM where nothing keeps it from computing; `llm` refuses for what does.

    Whether there is a GPU is then the package's own question, and its answer the error.
    """
    asked, number = parameters.inflight_runtime, parameters.gpu_device_ids
    if asked not in ("auto", "llm"):
        return ChosenRuntime(asked)
    missing = missing_for_llm(parameters, facts)
    has_gpu = number < len(facts.gpus)
    if missing is not None and asked == "llm":
        raise InflightError(
            ErrorKind.UNSUPPORTED, f"inflight_runtime is 'llm', and {missing}", "inflight_runtime"
        )
    if missing is not None or (asked == "auto" and not has_gpu):
        return ChosenRuntime("engine")
    return ChosenRuntime("llm", facts.package, facts.gpus[number] if has_gpu else None, number)


def missing_for_llm(parameters: EngineParameters, facts: Facts) -> str | None:
    """The first thing that keeps TensorRT-LLM from computing here, whatever GPU there is, in words."""
    if facts.package is None:
        return "the package tensorrt_llm is not installed here"
    if facts.package.version < OLDEST_LLM:
        oldest = ".".join(map(str, OLDEST_LLM))
        return f"tensorrt_llm is {facts.package.version_text}; {oldest} or newer is needed"
    if parameters.inflight_device == "cpu":
        return "inflight_device is 'cpu'; TensorRT-LLM computes on NVIDIA GPUs"
    if not facts.is_checkpoint:
        return (
            f"{parameters.gpt_model_path} is no Hugging Face checkpoint, the only kind that TensorRT-LLM "
            "reads here; inflight_runtime = engine reads .gguf files too"
        )
    return None


def load_runtime(parameters: EngineParameters, progress: LoadingProgress = ignore_progress) -> Runtime:
    """Imports the chosen runtime alone: what the others need may be missing here."""
    name = choose_runtime(parameters).name
    if name == "synthetic":
        from python_backend.engine.runtimes.synthetic import SyntheticRuntime

        return SyntheticRuntime(parameters)
    if name == "paced":
        from python_backend.engine.runtimes.paced import load_paced

        return load_paced(parameters)
    if name == "llm":
        from python_backend.engine.runtimes.trtllm.load import load_llm

        return load_llm(parameters, progress)
    from python_backend.engine.runtimes.own import load_engine

    return load_engine(parameters, progress)
