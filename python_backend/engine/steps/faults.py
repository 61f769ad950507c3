"""A step that raised is tried again in halves, so that it fails only for the sequences that cause it."""

from __future__ import annotations

import logging
from collections.abc import Sequence as Row

from python_backend.engine.kv.table import BlockCopy
from python_backend.engine.report import EngineBroken
from python_backend.engine.scheduling.plan import Chunk
from python_backend.engine.steps.ports import ChunkResult, Executor, Launched
from python_backend.wire.errors import ErrorKind, InflightError

_log = logging.getLogger("inflight.engine")

# So many sequences failing one after the other, and none succeeding: it is not the sequences.
_HOPELESS = 8


class GuardedExecution:
    """One step: every chunk gets its result or the error that it alone causes.

    One bad chunk among n costs about 2 log n further passes, and a step that fails for everybody not many
    more. A pass that runs out of memory as a whole may well succeed in parts, and nobody fails then.
    """

    def __init__(self, executor: Executor, tokens_per_block: int) -> None:
        self._executor = executor
        self._tokens_per_block = tokens_per_block
        self._failed = 0
        self._succeeded = 0

    def run(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> list[ChunkResult]:
        if not chunks:
            return []
        try:
            launched = self._executor.launch(chunks, copies)
            results = results_of(launched, chunks, self._executor.depth)
            self._succeeded += len(results)
            return results
        except EngineBroken:
            raise
        except Exception as error:
            if len(chunks) == 1 or self._is_hopeless:
                self._failed += len(chunks)
                _log.exception("a step failed for sequences %s", [chunk.sequence.key for chunk in chunks])
                return [ChunkResult(error=_failure(error)) for _ in chunks]
        half = len(chunks) // 2
        return [
            result
            for part in (chunks[:half], chunks[half:])
            for result in self.run(part, self._copies_for(part, copies))
        ]

    @property
    def _is_hopeless(self) -> bool:
        return self._failed >= _HOPELESS and not self._succeeded

    def _copies_for(self, chunks: Row[Chunk], copies: Row[BlockCopy]) -> list[BlockCopy]:
        """A copy is made again with its own chunk and no other, whose writing it could undo."""
        size = self._tokens_per_block
        entered = {block for chunk in chunks for block in chunk.sequence.table.at(chunk.start // size)}
        return [copy for copy in copies if copy.target in entered]


def results_of(launched: Launched, chunks: Row[Chunk], depth: int) -> list[ChunkResult]:
    """Raises EngineBroken where a step that others may have been launched behind does not come to its end."""
    try:
        results = launched.results()
        if len(results) != len(chunks):
            raise RuntimeError(f"{len(chunks)} chunks were submitted but {len(results)} results returned")
        return results
    except Exception as error:
        if depth > 1:
            raise EngineBroken(f"a step failed: {_cause(error)}") from error
        raise


def _failure(error: Exception) -> InflightError:
    if isinstance(error, InflightError):
        return error
    return InflightError(
        ErrorKind.ENGINE_FAILED, f"the engine could not compute this sequence: {_cause(error)}"
    )


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
