"""The `preprocessing` model: prompts and word lists to token ids, a whole batch in one tokenizer call."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from python_backend.text.tokenizer import Tokenizer
from python_backend.triton_adapter import pb
from python_backend.triton_adapter.request_starts import StartTeller
from python_backend.triton_adapter.start_watch import limit_s, watched
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.parameters import read_boolean

_log = logging.getLogger("inflight.preprocessing")
Value = TypeVar("Value", bool, str)
_NOT_HONOURED = ("DECODER_QUERY", "IMAGE_BYTES", "IMAGE_URL", "IMAGE_SIZES", "VIDEO_BYTES")


@dataclass(slots=True)
class _Job:
    """One request on its way through a batch: what it asks, then its ids or its failure."""

    inputs: dict[str, pb.Array]
    prompts: list[str]
    add_special_tokens: bool
    prompt_ids: Sequence[Sequence[int]]
    literal_mark: str
    whose: str
    request_id: str


class TritonPythonModel:
    def initialize(self, args: Mapping[str, str]) -> None:
        parameters = pb.model_parameters(args)
        folder = parameters["tokenizer_dir"]
        with watched(limit_s(Path(folder))):
            self._tokenizer = Tokenizer.load(folder)
            self._literal = self._tokenizer.literal_encoder()
            self._texts = self._tokenizer.remembered_texts(self._literal.cuts_words_first)
        self._add_special_tokens = read_boolean(parameters, "add_special_tokens", default=True)
        self._starts = StartTeller()

    def execute(self, requests: Sequence[pb.PbRequest]) -> list[Any]:
        for request in requests:
            self._starts.begun(request.request_id())
        jobs = [self._read(request) for request in requests]
        self._tokenize([job for job in jobs if isinstance(job, _Job)])
        return [self._respond(job) for job in jobs]

    def finalize(self) -> None:
        self._starts.close()

    def _read(self, request: pb.PbRequest) -> _Job | InflightError:
        try:
            inputs = pb.arrays(request)
            for name in _NOT_HONOURED:
                if name in inputs and any(value != b"" for value in inputs[name].reshape(-1)):
                    raise InflightError(ErrorKind.UNSUPPORTED, f"{name} is not supported by this model", name)
            prompts = [_text("QUERY", value) for value in inputs["QUERY"].reshape(-1)]
            prompt_ids = _given_ids(inputs, len(prompts))
            parameters = pb.request_parameters(request)
            flag = _parameter(parameters, "add_special_tokens", self._add_special_tokens, "a boolean")
            mark = _parameter(parameters, "inflight_literal_mark", "", "a text")
            names = ("tenant", "inflight_cache_salt")
            whose = json.dumps([_parameter(parameters, name, "", "a text") for name in names])
            return _Job(inputs, prompts, flag, prompt_ids, mark, whose, request.request_id())
        except InflightError as failure:
            return failure
        except Exception as error:
            _log.exception("the inputs of %r could not be read", request.request_id())
            return InflightError(ErrorKind.INTERNAL, f"{type(error).__name__}: {error}")

    def _tokenize(self, jobs: list[_Job]) -> None:
        for job in jobs:
            if job.literal_mark and not job.prompt_ids:
                flag = job.add_special_tokens
                job.prompt_ids = self._literal.encode_batch(job.prompts, job.literal_mark, flag, job.whose)
        for flag in (True, False):
            chosen = [job for job in jobs if job.add_special_tokens is flag and not job.prompt_ids]
            if not chosen:
                continue
            prompts = [prompt for job in chosen for prompt in job.prompts]
            whose = [job.whose for job in chosen for _ in job.prompts]
            ids = iter(self._texts.encode_batch(prompts, whose, flag))
            for job in chosen:
                job.prompt_ids = [next(ids) for _ in job.prompts]

    def _respond(self, job: _Job | InflightError) -> Any:
        if isinstance(job, _Job):
            try:
                return pb.utils().InferenceResponse(output_tensors=self._outputs(job))
            except InflightError as failure:
                job = failure
            except Exception as error:
                _log.exception("%r could not be tokenized", job.request_id)
                job = InflightError(ErrorKind.INTERNAL, f"{type(error).__name__}: {error}")
        return pb.utils().InferenceResponse(output_tensors=[], error=pb.error(job))

    def _outputs(self, job: _Job) -> list[Any]:
        rows = len(job.prompts)
        end_id = _column(job.inputs, "END_ID", self._tokenizer.eos_id, rows)
        pad_id = _column(job.inputs, "PAD_ID", self._tokenizer.pad_id, rows)
        outputs = [
            pb.tensor("INPUT_ID", _padded(job.prompt_ids, pad_id), np.int32),
            pb.tensor("REQUEST_INPUT_LEN", [[len(ids)] for ids in job.prompt_ids], np.int32),
            pb.tensor("DECODER_INPUT_ID", pad_id, np.int32),
            pb.tensor("REQUEST_DECODER_INPUT_LEN", [[1]] * rows, np.int32),
            pb.tensor("BAD_WORDS_IDS", self._word_lists(job.inputs, "BAD_WORDS_DICT", rows), np.int32),
            pb.tensor("STOP_WORDS_IDS", self._stop_words(job.inputs, rows), np.int32),
            pb.tensor("EMBEDDING_BIAS", self._embedding_bias(job.inputs, rows), np.float32),
            pb.tensor("REQUEST_OUTPUT_LEN", job.inputs["REQUEST_OUTPUT_LEN"].reshape(rows, 1), np.int32),
            pb.tensor("OUT_END_ID", end_id, np.int32),
            pb.tensor("OUT_PAD_ID", pad_id, np.int32),
        ]
        if "PROMPT_TABLE_EXTRA_ID" in job.inputs:
            extra = np.repeat(
                job.inputs["PROMPT_TABLE_EXTRA_ID"].reshape(rows, 1), max(map(len, job.prompt_ids)), axis=1
            )
            outputs.append(pb.tensor("OUT_PROMPT_TABLE_EXTRA_IDS", extra, np.uint64))
        return outputs

    def _stop_words(self, inputs: Mapping[str, pb.Array], rows: int) -> pb.Array:
        # The engine knows one end id; a model with more of them ends at the others as at stop words.
        more_ends = [] if "END_ID" in inputs else [[end_id] for end_id in self._tokenizer.eos_ids[1:]]
        return self._word_lists(inputs, "STOP_WORDS_DICT", rows, more_ends)

    def _word_lists(
        self, inputs: Mapping[str, pb.Array], name: str, rows: int, always: Sequence[list[int]] = ()
    ) -> pb.Array:
        """[rows, 2, n]: the ids of all words, and their cumulative ends padded with -1."""
        encoded: list[tuple[list[int], list[int]]] = []
        for row in range(rows):
            values = inputs[name].reshape(rows, -1)[row] if name in inputs else []
            words = self._tokenizer.encode_words([_text(name, value) for value in values])
            words += always
            flat = [token_id for word in words for token_id in word]
            ends = np.cumsum([len(word) for word in words]).tolist() if words else []
            encoded.append((flat, ends))
        width = max(len(flat) for flat, _ in encoded)
        table = np.full((rows, 2, width), -1, dtype=np.int32)
        table[:, 0, :] = 0
        for row, (flat, ends) in enumerate(encoded):
            table[row, 0, : len(flat)] = flat
            table[row, 1, : len(ends)] = ends
        return table

    def _embedding_bias(self, inputs: Mapping[str, pb.Array], rows: int) -> pb.Array:
        given = [name for name in ("EMBEDDING_BIAS_WORDS", "EMBEDDING_BIAS_WEIGHTS") if name in inputs]
        if not given:
            return np.zeros((rows, 0), dtype=np.float32)
        if len(given) == 1:
            raise InflightError(
                ErrorKind.INVALID_REQUEST,
                "embedding_bias_words and embedding_bias_weights must be given together, one weight per word",
                "embedding_bias_weights",
            )
        words, weights = (inputs[name].reshape(rows, -1) for name in given)
        if words.shape != weights.shape:
            raise InflightError(
                ErrorKind.INVALID_REQUEST,
                f"{words.shape[1]} embedding_bias_words but {weights.shape[1]} embedding_bias_weights",
                "embedding_bias_weights",
            )
        bias = np.zeros((rows, self._tokenizer.vocab_size), dtype=np.float32)
        for row in range(rows):
            for word, weight in zip(words[row], weights[row], strict=True):
                for ids in self._tokenizer.encode_words([_text("EMBEDDING_BIAS_WORDS", word)]):
                    np.add.at(bias[row], ids, weight)
        return bias


def _parameter(parameters: Mapping[str, Any], name: str, default: Value, allowed: str) -> Value:
    value = parameters.get(name, default)
    if type(value) is not type(default):
        raise InflightError(
            ErrorKind.INVALID_REQUEST, f"the request parameter {name} is {value!r}; allowed: {allowed}", name
        )
    return value


def _given_ids(inputs: Mapping[str, pb.Array], rows: int) -> Sequence[Sequence[int]]:
    """Prompts that come as ids, in place of their texts; none where there are texts to be tokenized."""
    given = inputs.get("PROMPT_IDS")
    if given is None or given.size == 0:
        return []
    ids: list[list[int]] = given.reshape(rows, -1).tolist()
    return ids


def _text(name: str, value: bytes | str) -> str:
    if isinstance(value, str):
        return value
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise InflightError(
            ErrorKind.INVALID_REQUEST, f"{name} is not valid UTF-8 (byte {error.start})", name
        ) from None


def _column(inputs: Mapping[str, pb.Array], name: str, default: int, rows: int) -> list[list[int]]:
    if name not in inputs:
        return [[default]] * rows
    return [[int(value)] for value in inputs[name].reshape(-1)]


def _padded(id_rows: Sequence[Sequence[int]], pad_ids: list[list[int]]) -> pb.Array:
    table = np.empty((len(id_rows), max(map(len, id_rows))), np.int32)
    for row, ids, (pad_id,) in zip(table, id_rows, pad_ids, strict=True):
        row[: len(ids)] = ids
        row[len(ids) :] = pad_id
    return table
