from __future__ import annotations

import struct

import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.control.releases.warm_up import (
    PROMPTS,
    TEXTS,
    WarmingFailed,
    warm_embeddings,
    warm_tensors,
    warm_text,
)
from router.core.embedding import EmbeddingAnswer, EmbeddingCall
from router.core.generation import GenerationCall
from router.triton.failures import from_text
from tests.fakes.embedder import FakeEmbedder
from tests.fakes.pipeline import FakePipeline, Step, words


class Ticks:
    """Each look at this clock is a second later than the last."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        self.now_s += 1.0
        return self.now_s


async def test_prompts_of_several_lengths_are_answered_greedily() -> None:
    pipeline = FakePipeline()
    profile = await warm_text(pipeline, clock=Ticks())
    assert [call.prompt for call in pipeline.calls] == list(PROMPTS)
    assert len({len(prompt) for prompt in PROMPTS}) == len(PROMPTS)
    assert all(call.top_k == 1 and call.max_tokens <= 16 for call in pipeline.calls)
    assert len({call.request_id for call in pipeline.calls}) == len(PROMPTS)
    # By the clock: a second to the first token and one to the end, in which the second token came.
    assert profile == {"first_token_s": 1.0, "tokens_per_s": 1.0}


async def test_a_prompt_that_fails_is_reported_without_paths() -> None:
    failure = InflightError(ErrorKind.ENGINE_FAILED, "Failed: /srv/x/model.py line 3: no")
    pipeline = FakePipeline(lambda call: [failure])
    with pytest.raises(WarmingFailed, match=r"a canonical prompt failed: Failed: model.py line 3: no"):
        await warm_text(pipeline)


async def test_a_models_own_error_message_is_reported() -> None:
    failure = from_text("engine_failed: the model gave numbers that are none", "r1")
    pipeline = FakePipeline(lambda call: [failure])
    with pytest.raises(WarmingFailed, match="prompt failed: the model gave numbers that are none"):
        await warm_text(pipeline)


async def test_a_model_that_answers_nothing_to_any_prompt_is_broken() -> None:
    pipeline = FakePipeline(lambda call: words(" ", ""))
    with pytest.raises(WarmingFailed, match="all 3 canonical prompts got an empty answer"):
        await warm_text(pipeline)


async def test_a_model_may_answer_nothing_to_some_prompts() -> None:
    pipeline = FakePipeline(lambda call: words("Paris") if call.prompt == PROMPTS[0] else words())
    assert (await warm_text(pipeline))["first_token_s"] >= 0


async def test_a_model_may_be_too_small_for_the_long_prompts() -> None:
    def script(call: GenerationCall) -> list[Step]:
        if call.prompt == PROMPTS[0]:
            return words("Paris")
        return [InflightError(ErrorKind.CONTEXT_LENGTH_EXCEEDED, "too long")]

    assert await warm_text(FakePipeline(script))


async def test_a_prompt_without_an_answer_times_out_and_is_stopped_in_the_engine() -> None:
    pipeline = FakePipeline(lambda call: [None])
    with pytest.raises(WarmingFailed, match=r"not answered within 0.05 s"):
        await warm_text(pipeline, timeout_s=0.05)
    assert pipeline.generations[0].stopped


async def test_texts_of_several_lengths_are_embedded() -> None:
    embedder = FakeEmbedder()
    assert (await warm_embeddings(embedder, 8))["first_token_s"] > 0
    assert [call.rows for call in embedder.calls] == [[text] for text in TEXTS]


@pytest.mark.parametrize("vector", [[float("nan")] * 8, [0.0] * 8, [1.0] * 7, [float("inf")] * 8])
async def test_vectors_that_are_not_finite_fail_the_warm_up(vector: list[float]) -> None:
    class Broken(FakeEmbedder):
        async def embed(self, call: EmbeddingCall, request_id: str, tenant: str) -> EmbeddingAnswer:
            return EmbeddingAnswer(struct.pack(f"<{len(vector)}f", *vector), [1])

    with pytest.raises(WarmingFailed, match="numbers that are not finite"):
        await warm_embeddings(Broken(), 8)


async def test_a_text_that_fails_or_hangs_is_a_failure() -> None:
    embedder = FakeEmbedder()
    embedder.fail = lambda call: InflightError(ErrorKind.INTERNAL, "no")
    with pytest.raises(WarmingFailed, match="a canonical text failed: no"):
        await warm_embeddings(embedder, 8)
    embedder = FakeEmbedder()
    embedder.hold()
    with pytest.raises(WarmingFailed, match=r"not embedded within 0.05 s"):
        await warm_embeddings(embedder, 8, timeout_s=0.05)


async def test_a_tensor_model_must_be_ready() -> None:
    async def yes() -> bool:
        return True

    async def no() -> bool:
        return False

    assert await warm_tensors(yes) == {}
    with pytest.raises(WarmingFailed, match="does not accept requests"):
        await warm_tensors(no)
