"""What keeps a queue delay from being changed now: rollouts, loads, and other trials."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from router.control.releases.states import State

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from router.control.releases.records import Release
    from router.control.tuning.subject import Subject
    from router.routing.split import ModelSplit

_COMING_OR_GOING = (State.LOADING, State.WARMING, State.DRAINING)


class Releases(Protocol):
    """What is used of a ReleasePublisher."""

    @property
    def releases(self) -> Sequence[Release]: ...
    @property
    def splits(self) -> Mapping[str, ModelSplit]: ...


def is_any_moving(releases: Releases) -> bool:
    """Whether memory is being taken or freed: how much will be left is not known yet."""
    return any(each.state in _COMING_OR_GOING for each in releases.releases)


def to_a_trial(subject: Subject, subjects: Iterable[Subject], releases: Releases) -> str:
    """Why nothing is tried now."""
    learned = subject.learner.learned
    if learned is not None and learned.is_frozen:
        return f"what its batches take is predicted {learned.error:.0%} wrong"
    split = releases.splits.get(subject.manifest.model)
    if split is not None and split.rollout_id is not None:
        return "a rollout is in progress, which would be judged by it"
    for other in subjects:
        if other is not subject and other.course.trial is not None:
            return f"a change of {other.name} is being judged"
    return ""


def to_a_load(subject: Subject, releases: Releases) -> str:
    """Why nothing of it is loaded now; asked right before, for the loads before it took their time."""
    ready = {each.manifest.name for each in releases.releases if each.state is State.READY}
    if is_any_moving(releases) or subject.manifest.name not in ready:
        return "a release is being loaded or unloaded"
    return ""
