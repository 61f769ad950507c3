"""One Triton model of one release that is measured and tuned, and what keeps it from a change now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from python_backend.costs.learners import BatchLearner
from router.control.releases.states import State
from router.control.tuning.ladder import Course
from router.control.tuning.statistics import Totals
from router.core.manifest import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from router.control.releases.records import Release
    from router.control.tuning.delay_change import Batched, Queueing
    from router.core.manifest import Manifest
    from router.routing.split import ModelSplit

_COMING_OR_GOING = (State.LOADING, State.WARMING, State.DRAINING)


class Releases(Protocol):
    """What is used of a ReleasePublisher."""

    @property
    def releases(self) -> Sequence[Release]: ...
    @property
    def splits(self) -> Mapping[str, ModelSplit]: ...


class Subject:
    """`batched` is what each server has loaded of it, by the server's name, where requests gather at all."""

    def __init__(self, manifest: Manifest, member: str, now_s: float) -> None:
        self.manifest = manifest
        self.member = member
        self.learner = BatchLearner()
        self.course = Course()
        self.window = Totals()
        self.window_began_s = now_s
        self.ever = Totals()  # since this router looks at it
        self.batched: dict[str, Batched] = {}
        self.refused: Queueing | None = None  # by Triton: not asked for again
        self.known: set[str] = set()  # servers whose config was read
        self._seen: dict[str, Totals] = {}
        self._read: dict[str, tuple[int, int]] = {}
        self._row_tokens = 0.0  # of a row, as last seen; 0: of this model no tokens are known
        self.window_tokens = 0.0

    @property
    def name(self) -> str:
        return f"{self.manifest.name} {self.member}"

    @property
    def is_entry(self) -> bool:
        return self.member == self.manifest.entry

    @property
    def is_fixed_cost(self) -> bool:
        """Whether admission wants to know what its batches take."""
        return self.is_entry and self.manifest.kind is not Kind.TEXT

    @property
    def delay_ms(self) -> float:
        """The longest of all servers: that is what an objective has to bear."""
        return max((each.queueing.delay_ms for each in self.batched.values()), default=0.0)

    def add(self, server: str, totals: Totals, now_s: float, read: tuple[int, int] = (0, 0)) -> None:
        """What is new since the last look; the first look at a server tells nothing.

        `read` are rows and tokens that this router had answered there. Triton counts rows alone, of all
        routers; that others' have as many tokens is the best guess.
        """
        rows, tokens = (now - then for now, then in zip(read, self._read.get(server, read), strict=True))
        self._read[server] = read
        if rows > 0:
            self._row_tokens = tokens / rows
        before, self._seen[server] = self._seen.get(server), totals
        news = None if before is None else totals.since(before)
        if news is not None:
            self.ever = self.ever.plus(news)
        if news is None or now_s < self.window_began_s:
            return
        self.window = self.window.plus(news)
        self.window_tokens += self._row_tokens * news.rows
        for rows, took_ms, count in news.mean_batches():
            self.learner.observe(rows, took_ms, count, self._row_tokens * rows)

    def know(self, server: str, batched: Batched | None) -> None:
        """What a server has loaded; None: nothing gathers there."""
        if server not in self.known:
            self.refused = None  # perhaps it was started anew
        self.known.add(server)
        if batched is None:
            self.batched.pop(server, None)
        else:
            self.batched[server] = batched

    def lose(self, server: str) -> None:
        """What it counts when it is back is not known to be new."""
        self.known.discard(server)
        self._seen.pop(server, None)
        self.batched.pop(server, None)

    def begin_window(self, at_s: float) -> None:
        """What is seen before that counts for nothing."""
        self.window = Totals()
        self.window_tokens = 0.0
        self.window_began_s = at_s


def is_any_moving(releases: Releases) -> bool:
    """Whether memory is being taken or freed: how much will be left is not known yet."""
    return any(each.state in _COMING_OR_GOING for each in releases.releases)


def trial_obstacle(subject: Subject, subjects: Iterable[Subject], releases: Releases) -> str:
    """Why nothing is tried now."""
    learned = subject.learner.learned
    if learned is not None and learned.is_frozen:
        return f"the predicted cost of its batches is {learned.error:.0%} off"
    split = releases.splits.get(subject.manifest.model)
    if split is not None and split.rollout_id is not None:
        return "a rollout is in progress, whose measurements it would distort"
    for other in subjects:
        if other is not subject and other.course.trial is not None:
            return f"a change of {other.name} is being evaluated"
    return ""


def load_obstacle(subject: Subject, releases: Releases) -> str:
    """Why nothing of it is loaded now; asked right before, for the loads before it took their time."""
    ready = {each.manifest.name for each in releases.releases if each.state is State.READY}
    if is_any_moving(releases) or subject.manifest.name not in ready:
        return "a release is being loaded or unloaded"
    return ""
