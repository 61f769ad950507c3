from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Sequence as Row

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from python_backend.engine.cuda.pinned_memory import Staging
from python_backend.engine.cuda.sampler import (
    NOT_NUMBERS,
    NOTHING_LEFT,
    Chosen,
    SampledRow,
    Sampler,
)
from python_backend.engine.request import GenerationRequest, Guide, GuideKind, SamplingParams
from python_backend.engine.sampling.tokens import choose_tokens
from python_backend.engine.sequence import Sequence
from python_backend.wire.errors import ErrorKind, InflightError
from tests.engine.cuda.cases import examples, on_gpu
from tests.fakes.guides import FakeGuide, Pace, bits_of

Logits = NDArray[np.float32]
GUIDE = Guide(GuideKind.JSON)
MORE_SLOTS = 3


class MaskGuide(FakeGuide):
    """Allows one answer, or refuses to go on."""

    def __init__(self, answer: list[int], vocabulary: int, error: InflightError | None = None) -> None:
        super().__init__(answer, Pace())
        self._vocabulary = vocabulary
        self._error = error

    def bits(self, end_id: int | None) -> NDArray[np.uint32]:
        if self._error is not None:
            raise self._error
        return bits_of(self.next_token(), self._vocabulary)


def sequence_of(request: GenerationRequest, generated: Row[int] = (), index: int = 0) -> Sequence:
    sequence = Sequence(0, 0, request, 1000, index=index)
    sequence.tokens.extend(generated)
    return sequence


def sampled(sampling: SamplingParams, generated: Row[int] = (), index: int = 0) -> Sequence:
    return sequence_of(GenerationRequest([0], 1000, sampling=sampling), generated, index)


def random_logits(rows: int, vocabulary: int, seed: int = 0) -> Logits:
    return (np.random.default_rng(seed).standard_normal((rows, vocabulary)) * 3).astype(np.float32)


class Device:
    """A sampler and what stands around it: slots are given out from the last to the first."""

    def __init__(self, device: str, vocabulary: int, slots: int) -> None:
        self._device = torch.device(device)
        self._slots = slots
        self.sampler = Sampler(vocabulary, slots, self._device)
        self.last_tokens = torch.full((slots + 1,), -7, dtype=torch.int32, device=self._device)
        self._staging = Staging(self._device, 1 << 20)
        self._slot_of: dict[Sequence, int] = {}

    def begin(self, sequence: Sequence, slot: int) -> None:
        self._slot_of[sequence] = slot
        self.sampler.begin(slot, sequence)

    def step(self, logits: Logits, sequences: Row[Sequence], behind: int = 0) -> Chosen:
        """Chooses for sequences of which the host does not know the last `behind` tokens yet."""
        for row, sequence in enumerate(sequences):
            if sequence not in self._slot_of:
                self.begin(sequence, self._slots - 1 - row)
        rows = [
            SampledRow(sequence, self._slot_of[sequence], sequence.generated_tokens + behind)
            for sequence in sequences
        ]
        slots = torch.tensor([row.slot for row in rows], dtype=torch.int32, device=self._device)
        self._staging.begin_step()
        own = torch.from_numpy(logits.copy()).to(self._device)
        chosen = self.sampler.choose(own, rows, slots, self.last_tokens, self._staging)
        expected = [max(token_id, 0) for token_id in chosen.tokens.tolist()]
        assert self.last_tokens[slots.long()].tolist() == expected
        return chosen


def choose(device: str, logits: Logits, sequences: Row[Sequence]) -> Chosen:
    return Device(device, logits.shape[1], len(sequences) + MORE_SLOTS).step(logits, sequences)


def tokens_of(device: str, logits: Logits, sequences: Row[Sequence]) -> list[int]:
    found: list[int] = choose(device, logits, sequences).tokens.tolist()
    return found


def assert_as_on_the_cpu(device: str, logits: Logits, sequences: Row[Sequence]) -> None:
    expected = [choice.token_id for choice in choose_tokens(logits, sequences)]
    assert tokens_of(device, logits, sequences) == expected


@pytest.mark.parametrize("vocabulary", [1, 5000, *on_gpu(37, 1000)])
def test_greedy_sampling_takes_the_likeliest_token_of_each_row(device: str, vocabulary: int) -> None:
    logits = random_logits(3, vocabulary)
    greedy = [
        SamplingParams(),
        SamplingParams(top_k=1, top_p=0.5),
        SamplingParams(temperature=0.0, top_p=0.9),
    ]
    assert_as_on_the_cpu(device, logits, [sampled(sampling) for sampling in greedy])


def test_of_equal_scores_the_lowest_id_wins(device: str) -> None:
    logits = np.zeros((2, 5000), np.float32)
    logits[1, [4200, 17, 3]] = 2.0
    assert tokens_of(device, logits, [sampled(SamplingParams()) for _ in range(2)]) == [0, 3]


@pytest.mark.parametrize(
    "sampling", [SamplingParams(), SamplingParams(top_k=3, top_p=0.9)], ids=["greedy", "drawn"]
)
def test_rows_that_are_not_finite_are_reported_and_affect_no_other(
    device: str, sampling: SamplingParams
) -> None:
    logits = np.repeat(random_logits(1, 4200), 5, axis=0)
    logits[1, 4100] = math.nan
    logits[2, 7] = math.inf
    logits[3] = -math.inf
    found = tokens_of(device, logits, [sampled(sampling) for _ in range(5)])
    assert found[1:4] == [NOT_NUMBERS] * 3
    assert found[0] == found[4] >= 0


def test_a_row_that_is_not_finite_stays_an_error_even_if_its_bad_token_is_banned(device: str) -> None:
    logits = random_logits(2, 37)
    logits[0, 5] = math.nan
    logits[1] = -math.inf
    banning = GenerationRequest([0], 10, bad_sequences=((5,),))
    assert tokens_of(device, logits, [sequence_of(banning), sequence_of(banning)]) == [NOT_NUMBERS] * 2


@pytest.mark.parametrize("top_p", [0.0, 0.9])
def test_a_row_with_every_token_forbidden_has_nothing_left(device: str, top_p: float) -> None:
    bad = tuple((token_id,) for token_id in range(37))
    request = GenerationRequest([0], 10, sampling=SamplingParams(top_p=top_p), bad_sequences=bad)
    assert tokens_of(device, random_logits(1, 37), [sequence_of(request)]) == [NOTHING_LEFT]


ADJUSTED = [
    GenerationRequest([1, 2, 2], 10, token_bias={5: 20.0, 6: -3.0}),
    GenerationRequest([1, 2, 2], 10, sampling=SamplingParams(repetition_penalty=3.0)),
    GenerationRequest([1, 2, 2], 10, sampling=SamplingParams(presence_penalty=5.0)),
    GenerationRequest([1, 2, 2], 10, sampling=SamplingParams(frequency_penalty=3.5, repetition_penalty=0.5)),
    GenerationRequest(
        [1, 2, 2], 10, 4, bad_sequences=((3,), (4, 9), (2, 3, 8)), stop_sequences=((7,), (1, 2))
    ),
    GenerationRequest([1, 2, 2], 10, 4, sampling=SamplingParams(min_tokens=4), stop_sequences=((7,),)),
    GenerationRequest([1, 2, 2], 10, 4),
    GenerationRequest(
        [1, 2, 2],
        10,
        4,
        sampling=SamplingParams(min_tokens=9, presence_penalty=1.5, repetition_penalty=1.4),
        bad_sequences=((5,),),
        token_bias={token_id: token_id / 10 for token_id in range(10)},
    ),
]


@pytest.mark.parametrize("generated", [(), (3, 4, 4), (9, 2, 3, 3, 3)], ids=str)
@pytest.mark.parametrize(
    "requests",
    [[GenerationRequest([0], 9), *ADJUSTED], *on_gpu(*([request] * 3 for request in ADJUSTED))],
    ids=["together", *map(str, range(len(ADJUSTED)))],
)
def test_adjusted_scores_are_those_of_the_cpu(
    device: str, requests: list[GenerationRequest], generated: tuple[int, ...]
) -> None:
    sequences = [sequence_of(request, generated) for request in requests * 2]
    assert_as_on_the_cpu(device, random_logits(len(sequences), 12, seed=len(generated)), sequences)


def test_chosen_tokens_count_before_the_host_knows_them(device: str) -> None:
    request = GenerationRequest(
        [1], 10, sampling=SamplingParams(frequency_penalty=4.0, repetition_penalty=1.2)
    )
    sequence, mirror = sequence_of(request), sequence_of(request)
    logits = random_logits(1, 9)
    machine = Device(device, 9, 2)
    for behind in range(12):
        expected = choose_tokens(logits, [mirror])[0].token_id
        assert expected is not None
        assert machine.step(logits, [sequence], behind).tokens.tolist() == [expected]
        mirror.tokens.append(expected)


def test_a_slot_forgets_its_previous_sequence(device: str) -> None:
    request = GenerationRequest([1], 10, sampling=SamplingParams(presence_penalty=100.0))
    machine = Device(device, 9, 1)
    logits = random_logits(1, 9)
    first = machine.step(logits, [sequence_of(request)]).tokens.tolist()
    assert machine.step(logits, [sequence_of(request)]).tokens.tolist() == first


def test_a_preempted_sequence_continues_with_its_counts_in_another_slot(device: str) -> None:
    request = GenerationRequest([1], 10, sampling=SamplingParams(presence_penalty=100.0))
    machine = Device(device, 9, 3)
    logits = random_logits(1, 9)
    sequence = sequence_of(request)
    for slot in (0, 1, 0, 2):
        machine.begin(sequence, slot)
        sequence.tokens.extend(machine.step(logits, [sequence]).tokens.tolist())
    assert sequence.generated_ids == np.argsort(-logits[0])[:4].tolist()


def test_a_guide_leaves_only_the_tokens_it_allows(device: str) -> None:
    sequences = [
        sequence_of(GenerationRequest([0], 10, guide=GUIDE, sampling=SamplingParams(top_p=top_p)))
        for top_p in (0.0, 0.9, 0.0)
    ]
    for sequence, token_id in zip(sequences, (4999, 31, 32), strict=True):
        sequence.guide = MaskGuide([token_id], 5000)
    plain = sampled(SamplingParams())
    logits = random_logits(4, 5000)
    assert tokens_of(device, logits, [*sequences, plain]) == [4999, 31, 32, int(logits[3].argmax())]


def test_a_guide_that_allows_no_token_leaves_nothing(device: str) -> None:
    sequence = sequence_of(GenerationRequest([0], 10, guide=GUIDE))
    sequence.guide = MaskGuide([], 37)
    assert tokens_of(device, random_logits(1, 37), [sequence]) == [NOTHING_LEFT]


def test_the_error_of_a_guide_belongs_to_its_row_alone(device: str) -> None:
    error = InflightError(ErrorKind.INVALID_REQUEST, "no")
    sequences = [sequence_of(GenerationRequest([0], 10, guide=GUIDE)) for _ in range(2)]
    sequences[0].guide = MaskGuide([1], 37, error)
    sequences[1].guide = MaskGuide([1], 37)
    chosen = choose(device, random_logits(2, 37), sequences)
    assert chosen.errors == {0: error}
    assert chosen.tokens.tolist()[1] == 1


@pytest.mark.parametrize(
    ("vocabulary", "is_adjusted"), [(37, True), (5000, False), *on_gpu((37, False), (5000, True))]
)
def test_log_probs_and_logits_are_the_models_own(device: str, vocabulary: int, is_adjusted: bool) -> None:
    bias = {3: 50.0} if is_adjusted else {}
    wanting = GenerationRequest(
        [0], 9, token_bias=bias, returns_log_probs=True, returns_generation_logits=True, bad_sequences=((1,),)
    )
    sequences = [sequence_of(GenerationRequest([0], 9)), sequence_of(wanting), sequence_of(wanting)]
    logits = random_logits(3, vocabulary)
    logits[2] *= 20
    chosen = choose(device, logits, sequences)
    expected = choose_tokens(logits, sequences)
    assert chosen.log_probs is not None
    assert chosen.tokens.tolist() == [choice.token_id for choice in expected]
    for row in (1, 2):
        assert chosen.log_probs.tolist()[row] == pytest.approx(expected[row].log_prob, rel=1e-5, abs=1e-5)
        assert chosen.raw_logits[row].cpu().numpy().tobytes() == expected[row].logits
    assert chosen.raw_logits.keys() == {1, 2}


@pytest.mark.parametrize(
    ("vocabulary", "is_adjusted"), [(3, True), (5000, False), *on_gpu((3, False), (5000, True))]
)
def test_top_log_probs_are_those_of_the_cpu(device: str, vocabulary: int, is_adjusted: bool) -> None:
    bias = {1: 50.0} if is_adjusted else {}
    sequences = [
        sequence_of(GenerationRequest([0], 9)),
        *(
            sequence_of(GenerationRequest([0], 9, token_bias=bias, top_log_probs=count))
            for count in (0, 20, 5)
        ),
    ]
    logits = random_logits(4, vocabulary)
    chosen = choose(device, logits, sequences)
    assert chosen.top_log_probs is not None
    found = chosen.top_log_probs.by_row()
    assert found.keys() == {1, 2, 3}
    for row, choice in enumerate(choose_tokens(logits, sequences)[1:], start=1):
        assert choice.top_log_probs is not None
        mine = found[row][: len(choice.top_log_probs)]
        assert [token_id for token_id, _ in mine] == [token_id for token_id, _ in choice.top_log_probs]
        expected = [number for _, number in choice.top_log_probs]
        np.testing.assert_allclose([number for _, number in mine], expected, atol=1e-5)


def test_log_probs_are_returned_only_on_request(device: str) -> None:
    chosen = choose(device, random_logits(1, 37), [sampled(SamplingParams())])
    assert chosen.log_probs is None
    assert chosen.top_log_probs is None
    assert not chosen.raw_logits
    assert not chosen.errors


def shares(logits: Logits, sampling: SamplingParams) -> dict[int, float]:
    """The definition, written out: temperature, then min_p, top_k, and the fewest that reach top_p."""
    weights = np.exp((logits.astype(np.float64) - float(logits.max())) / sampling.temperature)
    likely = int(np.count_nonzero(weights >= sampling.min_p))
    order = np.argsort(-weights, kind="stable")[:likely][: sampling.top_k or None].tolist()
    total = sum(weights[token_id] for token_id in order)
    kept: dict[int, float] = {}
    for token_id in order:
        kept[token_id] = float(weights[token_id] / total)
        if sampling.top_p > 0 and sum(kept.values()) >= sampling.top_p:
            break
    return {token_id: share / sum(kept.values()) for token_id, share in kept.items()}


DRAWN = [
    SamplingParams(top_p=1.0, seed=1),
    SamplingParams(top_p=0.6, seed=2),
    SamplingParams(top_k=3, seed=3),
    SamplingParams(top_k=5, top_p=0.8, temperature=2.0, seed=4),
    SamplingParams(temperature=0.3, top_p=0.95, seed=5),
    SamplingParams(top_k=1000, seed=6),
    SamplingParams(top_k=6, top_p=0.9, temperature=50.0, seed=7),
    SamplingParams(top_p=1.0, min_p=0.3, seed=8),
    SamplingParams(top_k=4, top_p=0.8, min_p=0.05, temperature=2.0, seed=9),
]


def stirred(x: NDArray[np.uint32]) -> NDArray[np.uint32]:
    x = (x ^ (x >> np.uint32(16))) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> np.uint32(13))) * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


def noise_of(sequence: Sequence, vocabulary: int) -> NDArray[np.float64]:
    """The noise of all tokens at a sequence's next position, written out once more."""
    state = struct.pack("=QQ", sequence.request.sampling.seed, sequence.index)
    low, high = np.frombuffer(hashlib.blake2b(state, digest_size=8).digest(), np.uint32).reshape(2, 1)
    golden = np.uint32(0x9E3779B9)
    first = stirred(low + np.array([sequence.generated_tokens], np.uint32) * golden)
    second = stirred(high ^ first)
    drawn = stirred(stirred(np.arange(vocabulary, dtype=np.uint32) * golden + first) ^ second)
    gumbel: NDArray[np.float64] = -np.log(-np.log1p(-(drawn.astype(np.float64) + 0.5) * 2.0**-32))
    return gumbel


def picked_by_noise(logits: Logits, sequence: Sequence) -> int:
    sampling = sequence.request.sampling
    if sampling.is_greedy:
        return int(logits.argmax())
    kept = shares(logits, sampling)
    noise = noise_of(sequence, len(logits))
    return max(kept, key=lambda token_id: math.log(kept[token_id]) + noise[token_id])


def test_the_sampling_noise_has_the_gumbel_distribution() -> None:
    """Kolmogorov's and Smirnov's distance, over tokens, places and seeds; and the largest matter most."""
    noise = np.sort(
        np.concatenate(
            [
                noise_of(sampled(SamplingParams(seed=seed), [0] * place), 5000)
                for place in range(5)
                for seed in range(4)
            ]
        )
    )
    expected = np.exp(-np.exp(-noise))
    assert np.abs(expected - (np.arange(len(noise)) + 0.5) / len(noise)).max() < 1.36 / math.sqrt(len(noise))
    assert 9 < noise[-1] < 16


def test_neighbouring_positions_tokens_sequences_and_seeds_share_no_noise() -> None:
    """Neither the same token at the next place, nor the next token, nor that of the next sequence or seed."""
    base = noise_of(sampled(SamplingParams(seed=3)), 20_000)
    others = [
        noise_of(sampled(SamplingParams(seed=3), [0]), 20_000),
        noise_of(sampled(SamplingParams(seed=3), index=1), 20_000),
        noise_of(sampled(SamplingParams(seed=4)), 20_000),
        np.roll(base, 1),
    ]
    assert all(abs(np.corrcoef(base, other)[0, 1]) < 0.02 for other in others)


@pytest.mark.parametrize("vocabulary", [12, 5000, *on_gpu(900)])
def test_noise_picks_a_token_that_top_k_and_top_p_keep(device: str, vocabulary: int) -> None:
    sequences = [sampled(sampling, [0] * place, index=place) for sampling in DRAWN for place in range(3)]
    logits = random_logits(len(sequences), vocabulary)
    expected = [picked_by_noise(row, sequence) for row, sequence in zip(logits, sequences, strict=True)]
    assert tokens_of(device, logits, sequences) == expected


@settings(
    deadline=None,
    max_examples=examples(compiled=50, interpreted=8),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    scores=st.lists(st.integers(-8, 8), min_size=4, max_size=20),
    top_k=st.integers(0, 6),
    top_p=st.sampled_from([0.0, 0.2, 0.55, 0.9, 1.0]),
    temperature=st.sampled_from([0.1, 1.0, 3.0]),
)
def test_of_equal_scores_top_k_and_top_p_keep_the_lower_ids(
    device: str, scores: list[int], top_k: int, top_p: float, temperature: float
) -> None:
    # A share that ends exactly where top_p does may be counted either way.
    sampling = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p * 0.9993)
    logits = np.array([scores] * 3, np.float32) / 3
    sequences = [sampled(sampling, index=index) for index in range(3)]
    assert tokens_of(device, logits, sequences) == [picked_by_noise(logits[0], one) for one in sequences]


def answer(device: str, sampling: SamplingParams, company: int, index: int = 0) -> list[int]:
    """The first tokens of a sequence among others that come before it, which changes its slot half-way."""
    vocabulary = 300
    machine = Device(device, vocabulary, company + 2)
    sequence = sampled(sampling, index=index)
    others = [
        sampled(SamplingParams(top_k=9, seed=50 + other, repetition_penalty=1.3)) for other in range(company)
    ]
    for step in range(4):
        if company and step == 2:
            machine.begin(sequence, 0)
        logits = np.concatenate(
            [random_logits(company, vocabulary, seed=99 + step), random_logits(1, vocabulary, seed=step)]
        )
        sequence.tokens.append(machine.step(logits, [*others, sequence]).tokens.tolist()[-1])
    return sequence.generated_ids


@pytest.mark.parametrize("top_k", [0, 20])
def test_a_seed_gives_the_same_tokens_alone_in_a_batch_and_after_preemption(device: str, top_k: int) -> None:
    sampling = SamplingParams(top_k=top_k, top_p=0.95, seed=7)
    assert answer(device, sampling, 0) == answer(device, sampling, 2)


def test_a_different_seed_or_sequence_index_gives_different_tokens(device: str) -> None:
    answers = {
        tuple(answer(device, SamplingParams(temperature=3.0, top_p=1.0, seed=seed), 0, index))
        for seed in (7, 2**64 - 1)
        for index in (0, 1)
    }
    assert len(answers) == 4


def test_a_decaying_top_p_of_one_still_limits(device: str) -> None:
    logits = random_logits(1, 37)
    sampling = SamplingParams(temperature=9.0, top_p=1.0, top_p_decay=1e-3, seed=3)
    calm = sampled(sampling, (1, 2, 3))
    assert Device(device, 37, 1).step(logits, [calm]).tokens.tolist() == [int(logits.argmax())]


def test_top_p_decays_from_token_to_token_and_is_reset(device: str) -> None:
    logits = np.zeros((1, 37), np.float32)
    sampling = SamplingParams(top_p=0.999, top_p_decay=0.03, top_p_reset_id=5, seed=3)
    machine = Device(device, 37, 1)
    calm = sampled(sampling, (1,))
    assert machine.step(logits, [calm]).tokens.tolist() in ([0], [1])
    calm.tokens.append(1)
    assert machine.step(logits, [calm]).tokens.tolist() == [0]
    reset = {
        tuple(machine.step(logits, [sampled(sampling, (1, 1, 5), index)]).tokens.tolist())
        for index in range(9)
    }
    assert len(reset) > 3


def test_warming_up_changes_no_sampler_state(device: str) -> None:
    machine = Device(device, 37, 2)
    machine.sampler.warm_up(Staging(torch.device(device), 1 << 16))
    logits = random_logits(1, 37)
    assert machine.step(logits, [sampled(SamplingParams())]).tokens.tolist() == [int(logits.argmax())]
