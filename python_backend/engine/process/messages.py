"""What the engine process and its owner say to each other: msgpack frames over one socket pair."""

from __future__ import annotations

from array import array
from dataclasses import replace
from multiprocessing.connection import Connection

import msgspec

from python_backend.engine.report import Gauges, Ready, SequenceEvent
from python_backend.engine.request import GenerationRequest
from python_backend.wire.parameters import EngineParameters
from python_backend.wire.tiers import Tier


class Start(msgspec.Struct, tag=True, frozen=True):
    """The first command: load the model and say Ready, or Broken."""

    parameters: EngineParameters


class Submit(msgspec.Struct, tag=True, frozen=True):
    """`arrival_ns` is the system's monotonic clock, which all processes of a machine share.

    The prompt's ids travel as numbers of 32 bits beside the `rest` of the request: a hundred thousand of them
    would take milliseconds to be read one by one, for which all others wait.
    """

    key: int
    rest: GenerationRequest
    arrival_ns: int
    prompt: bytes

    @classmethod
    def of(cls, key: int, request: GenerationRequest, arrival_ns: int) -> Submit:
        return cls(key, replace(request, prompt_ids=()), arrival_ns, array("i", request.prompt_ids).tobytes())

    @property
    def request(self) -> GenerationRequest:
        return replace(self.rest, prompt_ids=array("i", self.prompt))


class Cancel(msgspec.Struct, tag=True, frozen=True):
    key: int


class Configure(msgspec.Struct, tag=True, frozen=True):
    """New limits for the steps to come; None leaves one as it is.

    `inter_token_ms` has all tiers or is None: how far apart tokens may be, None where nothing is asked.
    """

    max_step_tokens: int | None = None
    max_batch_size: int | None = None
    inter_token_ms: dict[Tier, float | None] | None = None


class DropAdapter(msgspec.Struct, tag=True, frozen=True):
    """Its memory may be given back; who asks for it later has it loaded again."""

    name: str


class Loading(msgspec.Struct, tag=True, frozen=True):
    """How far the start is; any number of them before Ready. A total of 0: unknown."""

    stage: str
    done: int
    total: int


class Broken(msgspec.Struct, tag=True, frozen=True):
    """The model could not be loaded; the process ends after saying so."""

    error: str


class Progress(msgspec.Struct, tag=True, frozen=True):
    """What one step produced; the gauges only now and then."""

    events: list[SequenceEvent]
    gauges: Gauges | None = None


Command = Start | Submit | Cancel | Configure | DropAdapter
Report = Loading | Ready | Broken | Progress

_encoder = msgspec.msgpack.Encoder()
_commands: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)
_reports: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)


def pack(message: Command | Report) -> bytes:
    return _encoder.encode(message)


def unpack_command(frame: bytes) -> Command:
    return _commands.decode(frame)


def send(connection: Connection, message: Command | Report) -> None:
    connection.send_bytes(pack(message))


def receive_command(connection: Connection) -> Command:
    return unpack_command(connection.recv_bytes())


def receive_report(connection: Connection) -> Report:
    return _reports.decode(connection.recv_bytes())
