"""The `embeddings` model: the texts of all requests of a batch to vectors, or pairs to scores, at once."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from python_backend.embeddings.layers import Floats
from python_backend.embeddings.model import EmbeddingModel, shortened
from python_backend.embeddings.word_pieces import Tokens
from python_backend.triton_adapter import pb
from python_backend.triton_adapter.inputs import RowInputs, invalid
from python_backend.triton_adapter.start_watch import imported
from python_backend.triton_adapter.threads import threads_of
from python_backend.wire.encoder_parameters import parse_encoder_parameters
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import refusal

_log = logging.getLogger("inflight.embeddings")
_PADDING = -1


@dataclass(slots=True)
class _Job:
    """One request on its way through a batch; one entry a row."""

    texts: list[str]  # none where the caller has sent ids
    seconds: list[str]  # the other texts of pairs
    ids: list[list[int]] | list[Tokens]
    dimensions: int
    request: pb.PbRequest
    vectors: Floats = field(default_factory=lambda: np.empty((0, 0), np.float32))
    missing: int = 0  # rows that are not computed yet
    is_answered: bool = False

    @property
    def request_id(self) -> str:
        return self.request.request_id()


class TritonPythonModel:
    def initialize(self, args: Mapping[str, str]) -> None:
        imported()
        parameters = pb.model_parameters(args)
        told = parse_encoder_parameters(parameters)
        if told.device == "cuda":
            _take_share(told.gpu_memory_share)
        self._model = EmbeddingModel.load(
            parameters["checkpoint_dir"], threads_of(parameters), told.device, told.precision
        )

    def execute(self, requests: Sequence[pb.PbRequest]) -> list[Any]:
        jobs = [self._read(request) for request in requests]
        self._compute([job for job in jobs if isinstance(job, _Job)])
        is_answered = [isinstance(job, _Job) and job.is_answered for job in jobs]
        # Triton takes None for a request that was answered before.
        return [None if done else self._respond(job) for job, done in zip(jobs, is_answered, strict=True)]

    def _read(self, request: pb.PbRequest) -> _Job | InflightError:
        try:
            return self._decode(pb.arrays(request), request)
        except InflightError as failure:
            return failure
        except Exception as error:
            _log.exception("the inputs of %r could not be read", request.request_id())
            return _internal(error)

    def _decode(self, inputs: Mapping[str, pb.Array], request: pb.PbRequest) -> _Job:
        given = [name for name in ("TEXT", "INPUT_IDS") if name in inputs]
        if len(given) != 1:
            raise invalid("TEXT", f"expected either TEXT or INPUT_IDS, not {'both' if given else 'neither'}")
        rows = inputs[given[0]].shape[0]
        row_inputs = [RowInputs(inputs, row, rows) for row in range(rows)]
        texts, seconds, ids = [], [], []
        if given == ["TEXT"]:
            texts = [row.text("TEXT") for row in row_inputs]
            seconds = self._seconds(inputs, row_inputs)
        else:
            ids = [self._ids(row) for row in row_inputs]
        return _Job(texts, seconds, ids, self._dimensions(row_inputs), request)

    def _seconds(self, inputs: Mapping[str, pb.Array], rows: Sequence[RowInputs]) -> list[str]:
        if "TEXT_PAIR" not in inputs:
            return []
        if not self._model.is_reranker:
            raise invalid(
                "TEXT_PAIR", "TEXT_PAIR is for rerankers; this model makes embeddings of single texts"
            )
        return [row.text("TEXT_PAIR") for row in rows]

    def _ids(self, row: RowInputs) -> list[int]:
        ids = row.integers("INPUT_IDS")
        while ids and ids[-1] == _PADDING:
            ids.pop()
        if not ids:
            raise invalid("INPUT_IDS", "INPUT_IDS has an empty row; each row needs at least one id")
        return self._model.word_pieces.frame(ids)

    def _dimensions(self, rows: Sequence[RowInputs]) -> int:
        """The rows of a request are one tensor, so they are of one length; 0 is the model's own."""
        largest = self._model.dimensions
        chosen = {row.integer("DIMENSIONS", 0) or largest for row in rows}
        if len(chosen) > 1 or not 1 <= min(chosen) <= largest:
            raise invalid(
                "DIMENSIONS",
                f"DIMENSIONS is {', '.join(map(str, sorted(chosen)))}; allowed: 1 to {largest}, the same for "
                "each row",
            )
        return chosen.pop()

    def _compute(self, jobs: Sequence[_Job]) -> None:
        """A job that cannot be computed is left without vectors, and spoils no other."""
        try:
            self._embed(jobs)
        except Exception:
            if len(jobs) == 1:
                _log.exception("%r could not be computed", jobs[0].request_id)
                return
            for job in jobs:
                if not job.is_answered:
                    self._compute([job])

    def _embed(self, jobs: Sequence[_Job]) -> None:
        word_pieces = self._model.word_pieces
        single = [text for job in jobs if not job.seconds for text in job.texts]
        encoded = iter(word_pieces.encode(single) if single else [])
        for job in jobs:
            if job.seconds:
                job.ids = word_pieces.encode_pairs(list(zip(job.texts, job.seconds, strict=True)))
            elif job.texts:
                job.ids = [next(encoded) for _ in job.texts]
            job.missing = len(job.ids)
            job.vectors = np.empty((job.missing, self._model.dimensions), np.float32)
        places = [(job, row) for job in jobs for row in range(job.missing)]
        under_way = list(jobs)
        for indices, vectors in self._model.embed_in_slices([job.ids[row] for job, row in places]):
            for index, vector in zip(indices, vectors, strict=True):
                job, row = places[index]
                job.vectors[row] = vector
                job.missing -= 1
            done = [job for job in under_way if not job.missing]
            under_way = [job for job in under_way if job.missing]
            if under_way:
                self._answer_early(done)

    def _answer_early(self, jobs: Sequence[_Job]) -> None:
        """Whose texts are computed need not wait for the longer ones of others."""
        for job in jobs:
            try:
                flags = pb.utils().TRITONSERVER_RESPONSE_COMPLETE_FINAL
                job.request.get_response_sender().send(self._respond(job), flags=flags)
            except Exception:  # then it is answered with the others
                _log.exception("the early response to %r could not be sent", job.request_id)
            else:
                job.is_answered = True

    def _respond(self, job: _Job | InflightError) -> Any:
        if isinstance(job, _Job):
            try:
                return pb.utils().InferenceResponse(output_tensors=_outputs(job))
            except InflightError as failure:
                job = failure
            except Exception as error:
                _log.exception("%r could not be answered", job.request_id)
                job = _internal(error)
        return pb.utils().InferenceResponse(output_tensors=[], error=pb.error(job))


def _outputs(job: _Job) -> list[Any]:
    if job.missing or not len(job.vectors) or not np.isfinite(job.vectors).all():
        raise InflightError(ErrorKind.ENGINE_FAILED, "the vectors could not be computed; try again")
    vectors = shortened(job.vectors, job.dimensions)
    return [
        pb.tensor("EMBEDDING", vectors, np.float32),
        pb.tensor("TOKENS", [[len(ids)] for ids in job.ids], np.int32),
    ]


def _take_share(share: float) -> None:
    """Of a GPU no more memory is used than its share: the engine beside it has the rest."""
    try:
        from python_backend.embeddings.cuda.encoder import take_share

        take_share(share)
    except (ImportError, RuntimeError, AssertionError) as error:
        found = f"cpu, as torch with CUDA is not available on this machine ({error})"
        raise refusal("device", "cuda", found) from error


def _internal(error: Exception) -> InflightError:
    return InflightError(ErrorKind.INTERNAL, f"{type(error).__name__}: {error}")
