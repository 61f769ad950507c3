"""What a request may wait for before it is scheduled: its guide compiled, its adapter in its place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from python_backend.wire.errors import ErrorKind, InflightError

if TYPE_CHECKING:
    from python_backend.engine.adapters.shelf import AdapterShelf, Loan, Worn
    from python_backend.engine.guides.ports import AnswerGuide, GuideCompiler, PreparedGuide
    from python_backend.engine.request import GenerationRequest


class Preparation:
    """Of one request; its adapter stays its own until the request has ended."""

    __slots__ = ("guide", "loan")

    def __init__(self, guide: PreparedGuide | None, loan: Loan | None) -> None:
        self.guide = guide
        self.loan = loan

    @property
    def is_done(self) -> bool:
        loan, guide = self.loan, self.guide
        if loan is not None and loan.error is not None:
            return True
        return (loan is None or loan.worn is not None) and (guide is None or guide.done())

    @property
    def worn(self) -> Worn | None:
        return None if self.loan is None else self.loan.worn

    def compiled(self) -> AnswerGuide | None:
        """Raises InflightError where it cannot be had."""
        if self.loan is not None and self.loan.error is not None:
            raise self.loan.error
        try:
            return None if self.guide is None else self.guide.result()
        except InflightError:
            raise
        except Exception as error:
            failure = f"the guide could not be compiled: {error}"
            raise InflightError(ErrorKind.ENGINE_FAILED, failure) from error


class Preparations:
    """By the requests' keys, from when they come until they have ended."""

    def __init__(self, compiler: GuideCompiler | None, shelf: AdapterShelf | None) -> None:
        self._compiler = compiler
        self.shelf = shelf
        self._all: dict[int, Preparation] = {}
        self._waiting: dict[int, Preparation] = {}

    def __bool__(self) -> bool:
        """Whether somebody waits."""
        return bool(self._waiting)

    def begin(self, key: int, request: GenerationRequest) -> Preparation | None:
        """None where there is nothing to prepare. Raises InflightError for what cannot be had here."""
        if request.guide is None and not request.adapter:
            return None
        guide = self._compile(request)
        try:
            loan = self._borrow(request)
        except InflightError:
            if guide is not None:
                guide.cancel()
            raise
        preparation = self._all[key] = Preparation(guide, loan)
        if preparation.worn is None or guide is not None:
            self._waiting[key] = preparation
        return preparation

    def done(self) -> Iterator[tuple[int, Preparation]]:
        """Those that waited, and do so no more."""
        if not self._waiting:
            return
        if self.shelf is not None:
            self.shelf.settle()
        for key in [key for key, preparation in self._waiting.items() if preparation.is_done]:
            yield key, self._waiting.pop(key)

    def awaits(self, key: int) -> bool:
        return key in self._waiting

    def end(self, key: int) -> None:
        """The request has ended, or will not be begun."""
        preparation = self._all.pop(key, None)
        if preparation is None:
            return
        if self._waiting.pop(key, None) is not None and preparation.guide is not None:
            preparation.guide.cancel()
        if preparation.loan is not None and self.shelf is not None:
            self.shelf.give_back(preparation.loan)

    def follow_guides(self) -> None:
        """Guides were told what came; what may come next is looked for from now on."""
        if self._compiler is not None:
            self._compiler.follow()

    def _compile(self, request: GenerationRequest) -> PreparedGuide | None:
        if request.guide is None:
            return None
        if self._compiler is None:
            raise InflightError(
                ErrorKind.UNSUPPORTED, f"guided decoding ({request.guide.kind.value}) is not supported here"
            )
        return self._compiler.compile(request.guide, request.cache_salt, request.tenant)

    def _borrow(self, request: GenerationRequest) -> Loan | None:
        if not request.adapter:
            return None
        if self.shelf is None:
            raise InflightError(
                ErrorKind.UNSUPPORTED,
                f"adapter {request.adapter} is requested, but this engine has no slots for adapters "
                "(inflight_max_adapters, inflight_adapters_dir)",
                "inflight_adapter",
            )
        return self.shelf.borrow(request.adapter)
