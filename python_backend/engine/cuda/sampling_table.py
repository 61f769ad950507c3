"""What the device knows about each slot's way of choosing tokens: its settings, and its counts of tokens."""

from __future__ import annotations

import hashlib
import struct
from typing import TYPE_CHECKING

import numpy as np
import torch

from python_backend.engine.cuda.kernels.token_choice import WORDS
from python_backend.engine.sampling.tokens import current_top_p

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from python_backend.engine.cuda.kernels.sampling import SamplingKernels
    from python_backend.engine.cuda.pinned_memory import Staging
    from python_backend.engine.sequence import Sequence

_LARGEST = 3e38
_NOTHING_ASKED = struct.pack("=ffifff", 0.0, 1.0, 0, 1.0, 0.0, 0.0) + bytes(8)
_UINT64 = 2**64 - 1


class SamplingTable:
    """Changes are gathered, and go to the device together before the next tokens are chosen.

    `counts` is nothing but a place holder until the first request with penalties.
    """

    def __init__(self, vocabulary: int, slots: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._slots = slots
        self.settings = torch.zeros(slots + 1, WORDS, dtype=torch.int32, device=device)
        # Rows that nobody waits for have the last slot: the likeliest token, and nothing is penalized.
        self.settings[slots] = torch.frombuffer(bytearray(_NOTHING_ASKED), dtype=torch.int32)
        self.counts = torch.zeros(1, 1, dtype=torch.int32, device=device)
        self._changed: dict[int, bytes] = {}
        self._counted: dict[int, Sequence] = {}

    def begin(self, slot: int, sequence: Sequence) -> None:
        self.change(slot, sequence, sequence.generated_tokens)
        self._counted.pop(slot, None)
        if sequence.request.sampling.has_penalties:
            self._counted[slot] = sequence

    def change(self, slot: int, sequence: Sequence, answer_position: int) -> None:
        """Settings as they are for the token at this position of the answer."""
        self._changed[slot] = _words(sequence, answer_position, self._vocabulary)

    def flush(self, kernels: SamplingKernels, staging: Staging) -> None:
        if self._changed:
            slots = staging.upload(np.array(list(self._changed)))
            words = np.frombuffer(b"".join(self._changed.values()), np.int32).reshape(-1, WORDS)
            self.settings.index_copy_(0, slots, staging.upload(words))
            self._changed.clear()
        if self._counted:
            self._count(kernels, staging)
            self._counted.clear()

    def _count(self, kernels: SamplingKernels, staging: Staging) -> None:
        if len(self.counts) == 1:
            self.counts = self.counts.new_zeros(self._slots + 1, self._vocabulary)
        self.counts.index_fill_(0, staging.upload(np.array(list(self._counted))), 0)
        entries = [_entries(slot, sequence) for slot, sequence in self._counted.items()]
        kernels.count(self.counts, staging.upload(np.concatenate(entries, axis=1)))


def _entries(slot: int, sequence: Sequence) -> NDArray[np.int32]:
    entries = np.empty((3, len(sequence.tokens)), np.int32)
    entries[0] = slot
    entries[1] = sequence.tokens
    entries[2, : sequence.prompt_tokens] = 1
    entries[2, sequence.prompt_tokens :] = 2
    return entries


def _words(sequence: Sequence, answer_position: int, vocabulary: int) -> bytes:
    """In the order in which the kernels expect them."""
    sampling = sequence.request.sampling
    return (
        struct.pack(
            "=ffifff",
            0.0 if sampling.is_greedy else min(sampling.temperature, _LARGEST),
            current_top_p(sampling, sequence.tokens, answer_position),
            sampling.top_k if 0 < sampling.top_k < vocabulary else 0,
            min(sampling.repetition_penalty, _LARGEST),
            max(-_LARGEST, min(sampling.presence_penalty, _LARGEST)),
            max(-_LARGEST, min(sampling.frequency_penalty, _LARGEST)),
        )
        + hashlib.blake2b(struct.pack("=QQ", sampling.seed & _UINT64, sequence.index), digest_size=8).digest()
    )
