"""The interface of an executor: what computes the engine's steps."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Row
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from python_backend.engine.kv.table import BlockCopy
    from python_backend.engine.scheduling.plan import Chunk
    from python_backend.engine.sequence import Sequence
    from python_backend.wire.errors import InflightError


@dataclass(slots=True, eq=False)
class ChunkResult:
    """What one chunk gave; `token_id` is set where the chunk yields a token and its scores were numbers.

    `ends_guide` says that the sequence's guide allows nothing more, so that the answer ends here; `error` why
    this sequence alone cannot go on. Logits are rows of fp32: `context_logits` one for each prompt token of
    the chunk, `generation_logits` the one the token was chosen from. `top_log_probs` has the token itself
    first, then the likeliest; `prompt_log_probs` has such a row for each token of the prompt that follows one
    of the chunk's. `behind_drafts` tell what comes behind each of a chunk's drafts, if it is right.
    """

    token_id: int | None = None
    ends_guide: bool = False
    log_prob: float | None = None
    top_log_probs: list[tuple[int, float]] | None = None
    context_logits: bytes | None = None
    generation_logits: bytes | None = None
    error: InflightError | None = None
    prompt_log_probs: list[list[tuple[int, float]]] | None = None
    behind_drafts: Row[Callable[[], ChunkResult]] = ()


class Launched(Protocol):
    """A step that may still be running; its results need not be asked for."""

    @property
    def is_computed(self) -> bool:
        """Whether the device waits for the choice of tokens, if for anything of this step."""

    @property
    def is_chosen(self) -> bool:
        """False where tokens are chosen by what earlier steps give: then `choose` is to be called."""

    @property
    def is_over(self) -> bool:
        """Whether `results` would return at once."""

    def choose(self) -> None:
        """Has the tokens chosen, now that those of all earlier steps are known.

        Chunks that do not yield one any more, and sequences that ended meanwhile, get none. To be called
        before the next launch. After an error the whole step may be launched once more.
        """

    def results(self) -> list[ChunkResult]:
        """Waits for the step; one result for each chunk, in their order."""


class Executor(Protocol):
    """What runs the model: the keys and values of computed tokens are its own business.

    Steps take effect one after the other, in the order of their launches.
    """

    @property
    def depth(self) -> int:
        """How many steps may be in flight.

        1: a step is over when `launch` returns. 2: the next one is launched before the last one's results are
        asked for, so that a chunk may begin with a token that is still to come (at `len(sequence.tokens)`):
        the last one that its sequence was given. Where such a sequence `needs_history`, the tokens of the
        step are not chosen before `Launched.choose`.
        """

    @property
    def most_choices(self) -> int | None:
        """How many tokens a step chooses at most, all at once; None: any number, each by those before it."""

    def launch(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> Launched:
        """Copies blocks, then computes the chunks in one forward pass.

        Computing the same chunks again gives the same results: after an error it may be asked for fewer of
        them, unless the error is EngineBroken.
        """

    def release(self, sequence: Sequence) -> None:
        """The sequence left the batch, for good or until it is computed anew: what is kept for it may go.

        Nothing need be kept for it.
        """


class ChosenAtOnce:
    """A step whose tokens are chosen with its launch."""

    is_computed = is_chosen = True

    def choose(self) -> None:
        """All are."""


class Finished(ChosenAtOnce):
    """A step that is over."""

    is_over = True

    def __init__(self, results: list[ChunkResult]) -> None:
        self._results = results

    def results(self) -> list[ChunkResult]:
        return self._results
