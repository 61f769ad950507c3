"""Choosing each row's next token on the device, by the rules of `engine.sampling`.

The number drawn for a token is a function of the seed, the sequence's index, the place in the answer and the
token, as on the CPU, though not the same one. Nothing here waits for the device: what a row needs from the
host is known before the step, or the sequence `needs_history` and is not scheduled ahead.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from python_backend.engine.cuda.kernels.sampling import SamplingKernels
from python_backend.engine.cuda.kernels.token_choice import NOT_NUMBERS, NOTHING_LEFT
from python_backend.engine.cuda.sampling_table import SamplingTable
from python_backend.engine.cuda.score_edits import ScoreEdits
from python_backend.engine.cuda.top_log_probs import TopLogProbs, top_log_probs
from python_backend.engine.request import GenerationRequest, SamplingParams
from python_backend.engine.sequence import Sequence

if TYPE_CHECKING:
    from collections.abc import Callable
    from collections.abc import Sequence as Row

    from python_backend.engine.cuda.pinned_memory import Staging
    from python_backend.wire.errors import InflightError

__all__ = ["NOTHING_LEFT", "NOT_NUMBERS", "Chosen", "SampledRow", "Sampler"]

# What a row asks for beyond the likeliest token; plain ints, for every row of every step is asked.
_DRAWS = 1
_LIMITED = 2
_TOP_K = 4
_PENALTIES = 8
_RULES = 16
_GUIDE = 32
_DECAY = 64
_LOG_PROBS = 128
_RAW_LOGITS = 256
_TOP_LOG_PROBS = 512
_MIN_P = 1024
_ADJUSTED = _PENALTIES | _RULES | _GUIDE | _MIN_P
_ON_HOST = _RULES | _GUIDE | _DECAY | _LOG_PROBS | _RAW_LOGITS | _TOP_LOG_PROBS | _MIN_P


class SampledRow(NamedTuple):
    """`answer_position` is that of the token to be chosen, 0 for the first of the answer."""

    sequence: Sequence
    slot: int
    answer_position: int


@dataclass(slots=True)
class Chosen:
    """A step's outcome, by row, on the device still.

    A token may be NOT_NUMBERS or NOTHING_LEFT; where `errors` says why a sequence cannot go on it means
    nothing. `log_probs`, `top_log_probs` and `raw_logits` (fp32) are the model's own, before any setting
    changed them; those of rows whose request did not ask for them mean nothing, or are not there.
    """

    tokens: torch.Tensor
    log_probs: torch.Tensor | None
    top_log_probs: TopLogProbs | None
    raw_logits: dict[int, torch.Tensor]
    errors: dict[int, InflightError]


class Sampler:
    """Settings of a sequence stay on the device as long as it holds its slot; a step sends what changes."""

    def __init__(self, vocabulary: int, slots: int, device: torch.device) -> None:
        self._vocabulary = vocabulary
        self._device = device
        self._table = SamplingTable(vocabulary, slots, device)
        self._kernels = SamplingKernels(vocabulary, slots, device)
        self._needs = [0] * (slots + 1)
        # Before this position of the answer some tokens must not come, for they would end it.
        self._first_end = [0] * (slots + 1)

    def begin(self, slot: int, sequence: Sequence) -> None:
        """The slot is this sequence's from now on, all of whose tokens are known."""
        request = sequence.request
        self._needs[slot] = _needs_of(request, self._vocabulary)
        self._first_end[slot] = request.sampling.min_tokens if request.single_ends else 0
        self._table.begin(slot, sequence)

    def warm_up(self, staging: Staging) -> None:
        """Compiles every kernel, so that no request has to wait for it."""
        small = Sampler(self._vocabulary, 1, self._device)
        some = SamplingParams(temperature=0.5, top_k=2, top_p=0.5, frequency_penalty=1.0)
        adjusted = GenerationRequest([0], 2, sampling=some, token_bias={0: 1.0}, returns_log_probs=True)
        slots = torch.zeros(1, dtype=torch.int32, device=self._device)
        for request in (GenerationRequest([0], 2), adjusted):
            sequence = Sequence(0, 0, request, 2)
            small.begin(0, sequence)
            logits = torch.zeros(1, self._vocabulary, device=self._device)
            small.choose(logits, [SampledRow(sequence, 0, 0)], slots, slots.clone(), staging)
        words = -(-self._vocabulary // 32)
        self._kernels.forbid(logits, slots, torch.zeros(1, words, dtype=torch.int32, device=self._device))

    def choose(
        self,
        logits: torch.Tensor,
        rows: Row[SampledRow],
        slots: torch.Tensor,
        last_tokens: torch.Tensor,
        staging: Staging,
    ) -> Chosen:
        """The next token of each row, also as its slot's last one; may overwrite the logits (fp32)."""
        needs, on_host = self._look_at(rows)
        edits = self._gather_edits(rows, on_host)
        self._table.flush(self._kernels, staging)
        raw_logits = {row: logits[row].clone() for row, need in on_host.items() if need & _RAW_LOGITS}
        log_probs_of = self._log_probs(logits, needs, on_host, staging) if needs & _LOG_PROBS else None
        top_of = self._top_log_probs(logits, rows, on_host, staging) if needs & _TOP_LOG_PROBS else None
        if needs & _ADJUSTED:
            self._adjust(logits, needs, edits, slots, staging)
        if needs & _MIN_P:
            self._leave_out_unlikely(logits, rows, on_host, staging)
        positions = None
        if needs & _DRAWS:
            positions = staging.upload(np.array([row.answer_position for row in rows], np.int32))
        tokens = self._kernels.choose(
            logits,
            slots,
            positions,
            self._table.settings,
            self._table.counts,
            last_tokens,
            is_adjusted=bool(needs & _ADJUSTED),
            is_limited=bool(needs & _LIMITED),
            has_top_k=bool(needs & _TOP_K),
        )
        log_probs = log_probs_of(tokens) if log_probs_of is not None else None
        top_log_probs = top_of(tokens) if top_of is not None else None
        return Chosen(tokens, log_probs, top_log_probs, raw_logits, edits.errors)

    def _look_at(self, rows: Row[SampledRow]) -> tuple[int, dict[int, int]]:
        """What the rows need, all together, and by row what the host has a part in."""
        needs_of, first_end = self._needs, self._first_end
        needs = 0
        on_host = {}
        for number, (_, slot, position) in enumerate(rows):
            need = needs_of[slot] if position >= first_end[slot] else needs_of[slot] | _RULES
            if need:
                needs |= need
                if need & _ON_HOST:
                    on_host[number] = need
        return needs, on_host

    def _gather_edits(self, rows: Row[SampledRow], on_host: dict[int, int]) -> ScoreEdits:
        edits = ScoreEdits(self._vocabulary)
        for number, need in on_host.items():
            sequence, slot, position = rows[number]
            if need & _RULES:
                edits.add(number, sequence, may_end=position >= self._first_end[slot])
            if need & _GUIDE and sequence.guide is not None:
                edits.guide(number, sequence.guide, sequence.request.end_id)
            if need & _DECAY:
                self._table.change(slot, sequence, position)
        return edits

    def _adjust(
        self, logits: torch.Tensor, needs: int, edits: ScoreEdits, slots: torch.Tensor, staging: Staging
    ) -> None:
        """Bias, penalties, bans and guides, in this order."""
        self._kernels.survey_raw(logits)
        if edits.biases is not None:
            self._kernels.edit(logits, staging.upload(edits.biases))
        if needs & _PENALTIES:
            self._kernels.penalize(logits, slots, self._table.settings, self._table.counts)
        if edits.bans is not None:
            self._kernels.edit(logits, staging.upload(edits.bans))
        if edits.guided is not None:
            guided, bits = edits.guided
            self._kernels.forbid(logits, staging.upload(guided), staging.upload(bits))

    def _leave_out_unlikely(
        self, logits: torch.Tensor, rows: Row[SampledRow], on_host: dict[int, int], staging: Staging
    ) -> None:
        """Below `min_p` of the likeliest token's share; that one always stays."""
        wanted = [row for row, need in on_host.items() if need & _MIN_P]
        params = (rows[row].sequence.request.sampling for row in wanted)
        depths = [each.temperature * math.log(each.min_p) for each in params]
        places = staging.upload(np.array(wanted, np.int64))
        scores = logits.index_select(0, places)
        floors = scores.amax(1, keepdim=True) + staging.upload(np.array(depths, np.float32))[:, None]
        logits.index_copy_(0, places, scores.masked_fill(scores < floors, -math.inf))

    def _log_probs(
        self, logits: torch.Tensor, needs: int, on_host: dict[int, int], staging: Staging
    ) -> Callable[[torch.Tensor], torch.Tensor]:
        wanted = np.array([row for row, need in on_host.items() if need & _LOG_PROBS], np.int32)
        rows = staging.upload(wanted)
        if not needs & _ADJUSTED:
            return self._kernels.log_probs(logits, rows, rows)
        # The chosen token's own logit is asked for later, when it may have been overwritten.
        kept = staging.upload(np.arange(len(wanted), dtype=np.int32))
        return self._kernels.log_probs(logits.index_select(0, rows), kept, rows)

    def _top_log_probs(
        self, logits: torch.Tensor, rows: Row[SampledRow], on_host: dict[int, int], staging: Staging
    ) -> Callable[[torch.Tensor], TopLogProbs]:
        wanted = [row for row, need in on_host.items() if need & _TOP_LOG_PROBS]
        count = max(rows[row].sequence.request.top_log_probs or 0 for row in wanted)
        places = staging.upload(np.array(wanted, np.int64))
        scores = logits.index_select(0, places)  # a copy: the logits may be overwritten before the choice
        return lambda tokens: top_log_probs(scores, tokens.index_select(0, places), wanted, count)


def _needs_of(request: GenerationRequest, vocabulary: int) -> int:
    sampling = request.sampling
    has_top_k = 0 < sampling.top_k < vocabulary
    draws = not sampling.is_greedy
    return (
        _DRAWS * draws
        | _LIMITED * (draws and (has_top_k or 0 < sampling.top_p < 1 or sampling.decays_top_p))
        | _TOP_K * (draws and has_top_k)
        | _PENALTIES * sampling.has_penalties
        | _RULES * bool(request.token_bias or request.bad_sequences)
        | _GUIDE * (request.guide is not None)
        | _DECAY * (draws and sampling.decays_top_p)
        | _LOG_PROBS * request.returns_log_probs
        | _RAW_LOGITS * request.returns_generation_logits
        | _TOP_LOG_PROBS * (request.top_log_probs is not None)
        | _MIN_P * (draws and sampling.min_p > 0)
    )
