"""What serves a release: its files read once, its replicas put behind the ports that requests use."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf import text_format

from python_backend.wire.tensors import Tensor
from router.core.embedding import ServedEmbedder
from router.core.manifest import Kind, Manifest, parent_of
from router.routing.chat_template import load_template
from router.routing.checkpoint import load_context_tokens, load_limits, load_sampling_defaults
from router.routing.divided_generation import DividedGeneration
from router.routing.generation import FleetPipeline
from router.routing.hedged_generation import HedgedGeneration
from router.routing.hedging import Hedges
from router.routing.inference import FleetEmbedder, FleetTensors
from router.routing.models import Served, ServedModel, ServedTensors, TensorContract, TensorPort
from router.routing.shared_prefixes import SharedPrefixes
from router.triton.protocol import model_config_pb2

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from router.routing.models import Served
    from router.routing.replicas import FleetSettings, ReplicaSet
    from router.settings import EmbedderSettings, ModelSettings

    Maker = Callable[[ReplicaSet], Served]

log = logging.getLogger(__name__)

_STEPS_BEFORE = ("preprocessing",)
_STEPS_AFTER = ("postprocessing",)


def built_in_text(model: ModelSettings) -> Manifest:
    """The model that the settings name, as a release; its true number is the store's to say."""
    return Manifest(
        model.name,
        1,
        Kind.TEXT,
        (*_STEPS_BEFORE, model.engine, *_STEPS_AFTER, model.pipeline),
        model.engine,
        model.checkpoint_dir,
        model.weights_sha256,
        model.tokenizer_sha256,
        dict(model.parameters),
        is_built_in=True,
    )


def built_in_embeddings(model: EmbedderSettings) -> Manifest:
    return Manifest(
        model.name,
        1,
        Kind.EMBEDDINGS,
        (model.triton_model,),
        checkpoint_dir=model.checkpoint_dir,
        weights_sha256=model.weights_sha256,
        tokenizer_sha256=model.tokenizer_sha256,
        is_built_in=True,
    )


class Builder:
    """Reads files, so it is called in a thread; what it returns is called on the event loop."""

    def __init__(
        self, repository: Path, settings: FleetSettings, shared_prefixes: Sequence[str] = ()
    ) -> None:
        self._repository = repository
        self._settings = settings
        self._shared_prefixes = shared_prefixes

    def prepare(self, manifest: Manifest) -> Maker:
        makers = {Kind.TEXT: self._text, Kind.EMBEDDINGS: self._embeddings, Kind.TENSORS: self._tensors}
        return makers[manifest.kind](manifest)

    def _text(self, manifest: Manifest) -> Maker:
        directory = Path(manifest.checkpoint_dir)
        template = load_template(directory)
        if template is None:
            log.warning("%s has no chat template: it answers /v1/completions only", manifest.name)
        defaults = load_sampling_defaults(directory)
        context_tokens = load_context_tokens(directory)
        shared = SharedPrefixes(self._shared_prefixes, template, directory / "tokenizer.json")

        def make(replicas: ReplicaSet) -> ServedModel:
            return ServedModel(
                manifest.model,
                _pipeline(replicas, context_tokens, self._settings, shared),
                template,
                defaults,
                context_tokens,
                directory,
                version=manifest.version,
                triton_name=manifest.adapter or manifest.entry,
                parent=parent_of(manifest.model),
            )

        return make

    def _embeddings(self, manifest: Manifest) -> Maker:
        limits = load_limits(Path(manifest.checkpoint_dir))

        def make(replicas: ReplicaSet) -> ServedEmbedder:
            return ServedEmbedder(
                manifest.model,
                FleetEmbedder(replicas, self._settings),
                limits,
                version=manifest.version,
                triton_name=manifest.entry,
            )

        return make

    def _tensors(self, manifest: Manifest) -> Maker:
        config = read_config(self._repository / manifest.entry / "config.pbtxt")

        def make(replicas: ReplicaSet) -> Served:
            return served_tensors(manifest, config, FleetTensors(replicas, self._settings))

        return make


def served_tensors(manifest: Manifest, contract: TensorContract, tensors: TensorPort) -> ServedTensors:
    return ServedTensors(
        manifest.model, tensors, *contract, version=manifest.version, triton_name=manifest.entry
    )


def read_config(path: Path) -> TensorContract:
    """Raises ValueError for a config that no client could use, naming what is wrong with it."""
    config = model_config_pb2.ModelConfig()
    try:
        text_format.Parse(path.read_text(encoding="utf-8"), config)
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise ValueError(f"{path.name} cannot be read: {error}") from None
    return tensors_of(config)


def tensors_of(config: Any) -> TensorContract:
    """By a ModelConfig as its author wrote it: Triton completes none."""
    if config.HasField("sequence_batching"):
        raise ValueError("sequence_batching: models that keep state between requests are not supported")
    inputs = _tensors(config.input, "input")
    outputs = _tensors(config.output, "output")
    decoupled = bool(config.model_transaction_policy.decoupled)
    return TensorContract(inputs, outputs, int(config.max_batch_size), decoupled)


def _tensors(given: Iterable[Any], what: str) -> dict[str, Tensor]:
    found = {each.name: _tensor(each, what) for each in given}
    if not found:
        raise ValueError(f"the config names no {what}: it has to list each {what} with its type and dims")
    return found


def _tensor(given: Any, what: str) -> Tensor:
    if given.is_shape_tensor:
        raise ValueError(f"{what} '{given.name}': shape tensors are not supported")
    kind = model_config_pb2.DataType.Name(given.data_type).removeprefix("TYPE_")
    if kind == "INVALID" or not given.name:
        raise ValueError(f"{what} '{given.name}': a name and a data_type are needed")
    dtype = "BYTES" if kind == "STRING" else kind
    return Tensor(given.name, dtype, tuple(given.dims), optional=bool(getattr(given, "optional", False)))


def _pipeline(
    replicas: ReplicaSet, context_tokens: int, settings: FleetSettings, shared: SharedPrefixes
) -> FleetPipeline:
    """With second requests for late first tokens, where they are wanted and there is a second replica."""
    generation = None
    if settings.hedge_percent and replicas.only is None:
        replicas.hedges = replicas.hedges or Hedges(settings.hedge_percent)
        generation = partial(HedgedGeneration, hedges=replicas.hedges)
    return FleetPipeline(replicas, context_tokens, settings, shared, generation, DividedGeneration)
