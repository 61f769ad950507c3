"""Which runtime stands behind the contract: our own engine where it can, else vLLM, else TensorRT-LLM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from python_backend.engine.host.device import Gpu, visible_gpus
from python_backend.engine.runtimes.declaration import Facts, RuntimeDeclaration
from python_backend.engine.runtimes.declared import AUTO, BY_NAME
from python_backend.engine.runtimes.model_facts import read_model
from python_backend.engine.runtimes.trtllm.package import find_package
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import EngineParameters
from python_backend.wire.pools import BOTH
from python_backend.wire.runtime_environments import FILE, RuntimeEnvironment, environment_from


@dataclass(frozen=True, slots=True)
class ChosenRuntime:
    """With an `environment`, the package that computes; its Python need not be the one that runs this."""

    declaration: RuntimeDeclaration
    environment: RuntimeEnvironment | None = None
    gpus: tuple[Gpu, ...] = ()
    gpu: int = 0

    @property
    def name(self) -> str:
        return self.declaration.name

    @property
    def interpreter(self) -> str | None:
        """The Python that it needs, where that is another than the one that runs this."""
        return self.environment.python or None if self.environment else None

    @property
    def device(self) -> str:
        return self.environment.device if self.environment else ""

    @property
    def computes_on(self) -> str:
        """For a package, in words."""
        version = self.environment.version_text if self.environment else ""
        where = f"GPU {self.gpu} ({self.gpus[self.gpu].name})" if self.gpu < len(self.gpus) else ""
        if self.device == "cpu":
            where = "the CPU"
        return f"{self.declaration.title} {version} on {where or 'the device that it chooses'}"


def choose_runtime(parameters: EngineParameters) -> ChosenRuntime:
    """Refuses what this machine cannot do, saying what is missing."""
    declared = BY_NAME.get(parameters.inflight_runtime)
    needs_facts = declared is None or declared.oldest is not None
    environments = find_environments(parameters) if needs_facts else {}
    # The driver is not woken where nobody could use what it shows.
    facts = Facts(environments, visible_gpus() if environments else (), read_model(parameters.gpt_model_path))
    return decide_runtime(parameters, facts)


def decide_runtime(parameters: EngineParameters, facts: Facts) -> ChosenRuntime:
    """`auto` takes the first that nothing keeps from computing; one asked for by name is refused for it."""
    declared = BY_NAME.get(parameters.inflight_runtime)
    if declared is not None:
        if missing := _missing(declared, parameters, facts):
            raise _refusal(f"inflight_runtime is {declared.name!r}, but {missing}")
        return _chosen(declared, parameters, facts)
    kept_back = {each: _missing(each, parameters, facts) for each in AUTO}
    for each, missing in kept_back.items():
        if missing is None:
            return _chosen(each, parameters, facts)
    first, *others = kept_back.items()
    rest = "; ".join(f"{each.title} would be next, but {missing}" for each, missing in others)
    # No parameter is to blame: it is the model.
    raise InflightError(ErrorKind.UNSUPPORTED, f"{first[1]}; {rest}")


def _missing(declared: RuntimeDeclaration, parameters: EngineParameters, facts: Facts) -> str | None:
    pool = parameters.inflight_pool
    if pool != BOTH and not declared.capabilities.prefill_and_decode_apart:
        return f"inflight_pool is {pool!r}; {declared.title} supports no separate prefill and decode"
    return declared.missing(parameters, facts)


def _chosen(declared: RuntimeDeclaration, parameters: EngineParameters, facts: Facts) -> ChosenRuntime:
    return ChosenRuntime(declared, facts.environments.get(declared.name), facts.gpus, parameters.gpu)


def _refusal(sentence: str) -> InflightError:
    return InflightError(ErrorKind.UNSUPPORTED, sentence, "inflight_runtime")


def find_environments(parameters: EngineParameters) -> dict[str, RuntimeEnvironment]:
    """By the name of the runtime: those noted in the data directory, and what this very Python has."""
    found = {}
    if (package := find_package()) is not None:
        found["llm"] = RuntimeEnvironment("", "tensorrt_llm", package)
    for note in sorted(Path(parameters.inflight_runtimes_dir or "/nonexistent").glob(f"*/{FILE}")):
        try:
            found[note.parent.name] = environment_from(note.read_text())
        except (OSError, ValueError) as error:
            raise _refusal(f"{note} cannot be read: {error}") from error
    return found
