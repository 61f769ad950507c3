"""What the engine process and its owner say to each other: msgpack frames over one socket pair."""

from __future__ import annotations

from multiprocessing.connection import Connection

import msgspec

from python_backend.engine.sequence import GenerationRequest
from python_backend.wire.parameters import EngineParameters


class Start(msgspec.Struct, tag=True, frozen=True):
    """The first command: load the model and say Ready, or Broken."""

    parameters: EngineParameters


class Submit(msgspec.Struct, tag=True, frozen=True):
    key: int
    request: GenerationRequest


class Cancel(msgspec.Struct, tag=True, frozen=True):
    key: int


class Ready(msgspec.Struct, tag=True, frozen=True):
    """The model is loaded; what it can hold."""

    max_sequence_tokens: int
    total_blocks: int
    tokens_per_block: int
    max_batch_size: int


class Broken(msgspec.Struct, tag=True, frozen=True):
    """The model could not be loaded; the process ends after saying so."""

    error: str


class SequenceEvent(msgspec.Struct, array_like=True, frozen=True):
    """New tokens of one sequence; with `finish_reason` or `error` set it is the sequence's last."""

    key: int
    token_ids: list[int]
    finish_reason: str | None = None
    error: str | None = None

    @property
    def is_last(self) -> bool:
        return self.finish_reason is not None or self.error is not None


class Gauges(msgspec.Struct, array_like=True, frozen=True):
    """The engine at one moment, for Triton's metrics."""

    step_count: int
    active: int
    scheduled: int
    context: int
    waiting: int
    paused: int
    used_blocks: int
    total_blocks: int
    context_tokens: int


class Progress(msgspec.Struct, tag=True, frozen=True):
    """What one step produced; the gauges only now and then."""

    events: list[SequenceEvent]
    gauges: Gauges | None = None


Command = Start | Submit | Cancel
Report = Ready | Broken | Progress

_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def send(connection: Connection, message: Command | Report) -> None:
    connection.send_bytes(_encoder.encode(message))


def receive_command(connection: Connection) -> Command:
    return _commands.decode(connection.recv_bytes())


def receive_report(connection: Connection) -> Report:
    return _reports.decode(connection.recv_bytes())
