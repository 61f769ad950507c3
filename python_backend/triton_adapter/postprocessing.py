"""The `postprocessing` model: token ids to text that never breaks a character, one decoder a stream.

This project's engine says in the padding which stream a
response belongs to and whether it is the last (see `wire.stream_mark`); with engines that do not, a stream
is known by its request id, how often that has begun, row and sequence, and forgotten once it has been idle.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from python_backend.text.stream_table import StreamTable, TextLost
from python_backend.text.tokenizer import Tokenizer
from python_backend.triton_adapter import pb
from python_backend.triton_adapter.backpressure import Acknowledger
from python_backend.triton_adapter.request_starts import StartListener
from python_backend.triton_adapter.start_watch import limit_s, watched
from python_backend.wire.errors import TEXT_LOST, ErrorKind, InflightError
from python_backend.wire.parameters import read_boolean
from python_backend.wire.stream_mark import StreamMark, following

_log = logging.getLogger("inflight.postprocessing")
_ROW = "\0"  # between a request's id and its row and sequence


class TritonPythonModel:
    def initialize(self, args: Mapping[str, str]) -> None:
        pb_utils = pb.utils()
        parameters = pb.model_parameters(args)
        skip_special = read_boolean(parameters, "skip_special_tokens", default=True)
        folder = parameters["tokenizer_dir"]
        with watched(limit_s(Path(folder))):
            self._streams = StreamTable(Tokenizer.load(folder), skip_special_tokens=skip_special)
        self._family = pb_utils.MetricFamily(
            name="inflight_engine_postprocessing_streams",
            description="Streams whose text is being decoded",
            kind=pb_utils.MetricFamily.GAUGE,
        )
        self._gauge = self._family.Metric(
            labels={"model": args["model_name"], "version": args["model_version"]}
        )
        self._shown = -1
        self._acknowledger = Acknowledger()
        self._starts = StartListener()

    def execute(self, requests: Sequence[pb.PbRequest]) -> list[Any]:
        responses = [self._respond(request) for request in requests]
        if len(self._streams) != self._shown:
            self._shown = len(self._streams)
            self._gauge.set(self._shown)
        return responses

    def finalize(self) -> None:
        # Metrics go before their family: the other order ends the stub with a fault.
        del self._gauge
        del self._family
        self._acknowledger.close()
        self._starts.close()

    def _respond(self, request: pb.PbRequest) -> Any:
        try:
            inputs = pb.arrays(request)
            tokens, lengths = inputs["TOKENS_BATCH"], inputs["SEQUENCE_LENGTH"]
            request_id = _named(request.request_id(), inputs)
            shows_special = partial(_shows_special, request)
            top_ids = inputs.get("TOP_TOKEN_IDS")
            if top_ids is not None and lengths.size == 1:
                tensors = self._decode_each(request_id, tokens, lengths, top_ids, shows_special)
            else:
                texts = self._decode(request_id, tokens, lengths, shows_special)
                tensors = [pb.tensor("OUTPUT", [text.encode() for text in texts], np.object_)]
            return pb.utils().InferenceResponse(output_tensors=tensors)
        except TextLost:
            failure = InflightError(ErrorKind.ENGINE_FAILED, TEXT_LOST)
            return pb.utils().InferenceResponse(output_tensors=[], error=pb.error(failure))
        except Exception as error:
            _log.exception("the tokens of %r could not be decoded", request.request_id())
            failure = InflightError(ErrorKind.INTERNAL, f"{type(error).__name__}: {error}")
            return pb.utils().InferenceResponse(output_tensors=[], error=pb.error(failure))

    def _decode(
        self, request_id: str, tokens: pb.Array, lengths: pb.Array, shows_special: Callable[[], bool]
    ) -> list[str]:
        """One text for each beam of each row, in order."""
        beams = tokens.reshape(lengths.size, tokens.shape[-1]).tolist()
        texts = []
        for beam, (ids, length) in enumerate(zip(beams, lengths.reshape(-1).tolist(), strict=True)):
            padding = ids[length:] if len(beams) == 1 else []
            stream, turns, is_last = self._marked(request_id, padding)
            now_s = time.monotonic()
            texts.append(self._streams.feed(stream, beam, ids[:length], is_last, now_s, shows_special, turns))
        return texts

    def _decode_each(
        self,
        request_id: str,
        tokens: pb.Array,
        lengths: pb.Array,
        top_ids: pb.Array,
        shows_special: Callable[[], bool],
    ) -> list[Any]:
        """The text of one beam, and beside it the bytes of its tokens and of those that might have come."""
        ids, length, now_s = tokens.reshape(-1).tolist(), int(lengths.reshape(-1)[0]), time.monotonic()
        rows = top_ids.reshape(-1, top_ids.shape[-1]).tolist()
        stream, turns, is_last = self._marked(request_id, ids[length:])
        # Of an echoed prompt only the text is wanted.
        echoed = self._streams.feed(stream, 0, ids[: length - len(rows)], False, now_s, shows_special, turns)
        shown = self._streams.feed_each(stream, 0, rows, is_last, now_s, shows_special)
        text = echoed + "".join(token.text for token in shown)
        characters = [-1 if token.is_hidden else len(token.text) for token in shown]
        pieces = np.array([piece for token in shown for piece in token.pieces], np.object_)
        return [
            pb.tensor("OUTPUT", [text.encode()], np.object_),
            pb.tensor("top_tokens", pieces.reshape(1, *top_ids.shape[-2:]), np.object_),
            pb.tensor("token_characters", [characters], np.int32),
        ]

    def _marked(self, request_id: str, padding: list[int]) -> tuple[str, tuple[int, int] | None, bool]:
        """Which stream the ids before the padding belong to, their turn and the next, and if it is over."""
        mark = StreamMark.from_padding_id(padding[0]) if padding else None
        if mark is None:
            begun = self._starts.times_begun(request_id.partition(_ROW)[0])
            return f"{request_id}~{begun}" if request_id else "", None, False
        self._acknowledger.handled(mark.lane)
        return f"{request_id}/{mark.lane}/{mark.stream}", (mark.turn, following(mark.turn)), mark.is_last


def _shows_special(request: pb.PbRequest) -> bool:
    """What a request says of its special tokens; without a word they are left out, as the config has it."""
    return pb.request_parameters(request).get("inflight_special_tokens") is True


def _named(request_id: str, inputs: Mapping[str, pb.Array]) -> str:
    """Of one row and sequence of a request: NVIDIA's backend sends all of them under the request's id."""
    indices = [inputs[name] for name in ("BATCH_INDEX", "SEQUENCE_INDEX") if name in inputs]
    if not request_id or not indices:
        return request_id
    return _ROW.join([request_id, *(str(int(index.reshape(-1)[0])) for index in indices)])
