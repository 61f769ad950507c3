"""The engine's noun and what it keeps: its tokens, the rules for them, and the steps it was part of."""

from python_backend.engine.sequence.sequence import Sequence, sequences_of

__all__ = ["Sequence", "sequences_of"]
