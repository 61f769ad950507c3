"""The adapters that an engine has at hand: read when first asked for, held while a request has them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from python_backend.engine.adapters.adapter import Adapter, AdapterMemory
from python_backend.engine.adapters.library import check_name, find_adapter
from python_backend.engine.adapters.peft import read_adapter
from python_backend.engine.adapters.places import Place, choose_place
from python_backend.engine.models.decoder import DecoderShape
from python_backend.wire.errors import ErrorKind, InflightError

_log = logging.getLogger("inflight.engine")

# How many are read ahead of their places: each takes memory until it has one.
_MOST_READ = 4


@dataclass(frozen=True, slots=True)
class Worn:
    """The adapter of a sequence: where the model keeps it, and what tells it from others."""

    place: int
    identity: bytes


class Loan:
    """One request's adapter: `worn` once it is in its place, or `error`; to be given back exactly once."""

    __slots__ = ("error", "name", "worn")

    def __init__(self, name: str) -> None:
        self.name = name
        self.worn: Worn | None = None
        self.error: InflightError | None = None


class AdapterShelf:
    """One thread uses it, but for `read`, which is called in another and takes as long as it takes."""

    def __init__(self, memory: AdapterMemory, read: Callable[[str], Adapter]) -> None:
        self._memory = memory
        self._read = read
        self._places = [Place() for _ in range(memory.places)]
        self._identities: dict[int, bytes] = {}
        self._closed: set[int] = set()  # places whose adapter makes way: nobody gets it before it did
        self._dropped: set[int] = set()  # those that do so whoever waits
        self._reading: dict[str, Future[Adapter]] = {}
        self._waiting: list[Loan] = []
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="adapters")
        self._asks = 0
        self.loads = 0  # over the engine's life

    @property
    def names(self) -> list[str]:
        return [place.adapter for place in self._places if place.adapter]

    @property
    def is_waited_for(self) -> bool:
        return bool(self._waiting)

    def borrow(self, name: str) -> Loan:
        """Raises InflightError for a name that cannot be one."""
        check_name(name)
        loan = Loan(name)
        self._waiting.append(loan)
        self.settle()
        return loan

    def settle(self) -> None:
        """Serves those that wait, in their order, as far as places and what was read allow."""
        waiting, self._waiting = self._waiting, []
        for loan in waiting:
            self._serve(loan)
            if loan.worn is None and loan.error is None:
                self._waiting.append(loan)
        if not self._waiting:
            self._closed &= self._dropped

    def give_back(self, loan: Loan) -> None:
        if loan in self._waiting:
            self._waiting.remove(loan)
            if all(other.name != loan.name for other in self._waiting):
                self._forget(loan.name)
        if loan.worn is None:
            return
        index = loan.worn.place
        place = self._places[index]
        self._places[index] = replace(place, holders=place.holders - 1)
        if index in self._closed and place.holders == 1:
            self._empty(index)

    def drop(self, name: str) -> None:
        """Its memory is given back, as soon as nobody has it; who asks again has it read again."""
        for index, place in enumerate(self._places):
            if place.adapter == name:
                self._closed.add(index)
                self._dropped.add(index)
                if place.holders == 0:
                    self._empty(index)

    def close(self) -> None:
        self._reader.shutdown(wait=False, cancel_futures=True)

    def _serve(self, loan: Loan) -> None:
        for index, place in enumerate(self._places):
            if place.adapter == loan.name and index not in self._closed:
                self._lend(loan, index)
                return
        reading = self._reading.get(loan.name)
        if reading is None:
            if len(self._reading) >= _MOST_READ:
                return
            reading = self._reading[loan.name] = self._reader.submit(self._read, loan.name)
        if not reading.done():
            return
        if reading.exception() is not None:
            del self._reading[loan.name]
            loan.error = _failure(loan.name, reading.exception())
            return
        index, is_free = choose_place(self._places)
        if not is_free:
            self._closed.add(index)
            return
        del self._reading[loan.name]
        self._empty(index)
        try:
            self._memory.put(index, reading.result())
        except Exception as error:
            self._memory.clear(index)
            loan.error = _failure(loan.name, error)
            return
        self.loads += 1
        _log.info("adapter %s is loaded, rank %d", loan.name, reading.result().rank)
        self._places[index] = Place(loan.name)
        self._identities[index] = reading.result().identity
        self._lend(loan, index)

    def _lend(self, loan: Loan, index: int) -> None:
        self._asks += 1
        place = self._places[index]
        self._places[index] = replace(place, holders=place.holders + 1, asked=self._asks)
        loan.worn = Worn(index, self._identities[index])

    def _forget(self, name: str) -> None:
        if (reading := self._reading.pop(name, None)) is not None:
            reading.cancel()

    def _empty(self, index: int) -> None:
        self._closed.discard(index)
        self._dropped.discard(index)
        if self._places[index].adapter:
            _log.info("adapter %s is unloaded", self._places[index].adapter)
            self._memory.clear(index)
            self._places[index] = Place()


def _failure(name: str, error: BaseException | None) -> InflightError:
    if isinstance(error, InflightError):
        return error
    return InflightError(ErrorKind.ENGINE_FAILED, f"adapter {name} could not be loaded: {error}")


def reader_of(directory: Path, shape: DecoderShape, max_rank: int) -> Callable[[str], Adapter]:
    """Reads those of a directory, by their names."""

    def read(name: str) -> Adapter:
        return read_adapter(find_adapter(directory, name), name, shape, max_rank)

    return read
