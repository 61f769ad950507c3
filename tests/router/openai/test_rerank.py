"""POST /v1/rerank and /v1/score through a whole router, by a reranker and by embeddings."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from router.core.embedding import ROWS_PER_CALL, EmbeddingLimits, ServedEmbedder
from router.core.tenant import Scope
from router.openai.rerank import plan_of
from router.request.embedding_calls import MAX_INPUTS
from router.routing.models import lineup_of
from tests.fakes.embedder import LIMITS, RERANKER_LIMITS, FakeReranker, likeness, vector
from tests.router.running import EMBEDDER, MODEL, RunningRouter

RERANKER = "tiny-scores"
QUERY = "password"
TEXTS = [f"{'pass' if number % 3 else 'cake'} text {number}" for number in range(2 * ROWS_PER_CALL + 5)]


@pytest.fixture
def reranker(router: RunningRouter) -> FakeReranker:
    """Served beside the others."""
    made = FakeReranker()
    served = ServedEmbedder(RERANKER, made, RERANKER_LIMITS)
    models = router.parts.models
    models.publish({**models.lineups, RERANKER: lineup_of(served)})
    return made


def cosine(first: str, second: str) -> float:
    """Of vectors that the fake takes for vectors of length 1."""
    vectors = (vector(text, LIMITS.dimensions) for text in (first, second))
    return sum(float(one * other) for one, other in zip(*vectors, strict=True))


async def rerank(router: RunningRouter, path: str = "/v1/rerank", **fields: Any) -> httpx.Response:
    return await router.http.post(
        path, json={"model": RERANKER, "query": QUERY, "documents": TEXTS, **fields}
    )


async def score(router: RunningRouter, **fields: Any) -> httpx.Response:
    return await router.http.post("/v1/score", json={"model": RERANKER, "text_1": QUERY, **fields})


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
async def test_documents_come_back_in_the_order_of_a_rerankers_scores(
    router: RunningRouter, reranker: FakeReranker, path: str
) -> None:
    body = (await rerank(router, path)).json()
    expected = {index: likeness(QUERY, text) for index, text in enumerate(TEXTS)}
    found = [(each["index"], each["relevance_score"]) for each in body["results"]]
    assert dict(found) == expected
    assert [value for _, value in found] == sorted(expected.values(), reverse=True)
    assert body["results"][0]["document"] == {"text": TEXTS[found[0][0]]}
    assert (body["object"], body["model"], body["id"][:7]) == ("list", RERANKER, "rerank-")
    assert body["usage"]["total_tokens"] == len(TEXTS) * (len(QUERY) + 2)
    assert [len(call.rows) for call in reranker.calls] == [ROWS_PER_CALL, ROWS_PER_CALL, 5]
    assert [text for call in reranker.calls for text in call.seconds] == TEXTS


async def test_only_the_best_are_told_and_without_their_texts_where_that_is_asked(
    router: RunningRouter, reranker: FakeReranker
) -> None:
    documents = [{"text": "cake"}, "password", {"text": "pass"}]
    answer = await rerank(router, documents=documents, top_n=2, return_documents=False, user="someone")
    assert [each["index"] for each in answer.json()["results"]] == [1, 2]
    assert not any("document" in each for each in answer.json()["results"])


async def test_without_a_reranker_documents_are_compared_by_their_embeddings(router: RunningRouter) -> None:
    body = (await rerank(router, model=EMBEDDER)).json()
    scores = {each["index"]: each["relevance_score"] for each in body["results"]}
    assert scores == {index: cosine(QUERY, text) for index, text in enumerate(TEXTS)}
    assert [row for call in router.embedder.calls for row in call.rows] == [QUERY, *TEXTS]


async def test_pairs_are_scored_by_a_reranker_and_by_embeddings(
    router: RunningRouter, reranker: FakeReranker
) -> None:
    others = ["cake", "pass", "word"]
    one_to_all = (await score(router, text_2=others)).json()
    assert [each["score"] for each in one_to_all["data"]] == [likeness(QUERY, text) for text in others]
    assert [each["index"] for each in one_to_all["data"]] == [0, 1, 2]
    each_to_each = (await score(router, model=EMBEDDER, text_1=TEXTS, text_2=TEXTS[::-1])).json()
    expected = [cosine(first, second) for first, second in zip(TEXTS, TEXTS[::-1], strict=True)]
    assert [each["score"] for each in each_to_each["data"]] == expected
    alone = (await score(router, text_2="pass")).json()
    assert [each["score"] for each in alone["data"]] == [likeness(QUERY, "pass")]


@pytest.mark.parametrize(
    ("fields", "said", "param"),
    [
        ({"documents": []}, "documents: 0 texts; allowed: 1 to 2048", "documents"),
        ({"documents": ["a"] * (MAX_INPUTS + 1)}, "documents: 2049 texts; allowed: 1 to 2048", "documents"),
        ({"documents": ["a", ""]}, "documents[1]: an empty text has no score", "documents[1]"),
        ({"query": ""}, "query: an empty text", "query"),
        ({"top_n": 0}, "top_n: expected `int` >= 1", "top_n"),
        ({"rank_fields": ["a"]}, "Unrecognized request argument supplied: rank_fields", "rank_fields"),
        ({"model": MODEL}, f"does not score texts; use '{RERANKER}' or '{EMBEDDER}' instead", "model"),
    ],
)
async def test_a_wrong_reranking_is_refused_before_any_work(
    router: RunningRouter, reranker: FakeReranker, fields: dict[str, Any], said: str, param: str
) -> None:
    answer = await rerank(router, **fields)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == param
    assert reranker.calls == router.embedder.calls == []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"text_2": []}, "text_2: 0 texts; allowed: 1 to 2048"),
        (
            {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]},
            "2 and 3 texts; allowed: the same number of both",
        ),
        ({"text_2": ["a", ""]}, "text_2: an empty text has no score"),
    ],
)
async def test_a_wrong_scoring_is_refused(
    router: RunningRouter, reranker: FakeReranker, fields: dict[str, Any], said: str
) -> None:
    answer = await score(router, **fields)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]


async def test_a_reranker_makes_no_embeddings_and_no_text(
    router: RunningRouter, reranker: FakeReranker
) -> None:
    answer = await router.http.post("/v1/embeddings", json={"model": RERANKER, "input": "a"})
    assert f"scores texts, by /v1/rerank, and makes no embeddings; use '{EMBEDDER}'" in answer.text
    answer = await router.chat(model=RERANKER)
    assert "scores texts and generates none; use /v1/rerank" in answer.text


async def test_reranking_has_the_scope_of_embeddings_and_counts_its_tokens(
    router: RunningRouter, reranker: FakeReranker
) -> None:
    tenant = await router.new_tenant()
    wrong = await router.new_key(tenant, frozenset({Scope.INFERENCE}))
    right = await router.new_key(tenant, frozenset({Scope.EMBEDDINGS}))
    body = {"model": RERANKER, "query": QUERY, "documents": ["pass"]}
    for key, status in ((wrong, 403), (right, 200)):
        headers = {"authorization": f"Bearer {key}"}
        assert (await router.http.post("/v1/rerank", json=body, headers=headers)).status_code == status
    (used,) = await router.usage(tenant)
    assert used.prompt_tokens == len(QUERY) + 2


def test_prompts_for_queries_and_documents_are_the_models_own() -> None:
    limits = EmbeddingLimits(8, 1000, 16, prompts={"query": "Q: ", "document": "D: "})
    (call,) = plan_of([("a", "b")], limits).calls
    assert call.rows == ["Q: a", "D: b"]
    with_default = EmbeddingLimits(8, 1000, 16, prompts={"usual": "U: "}, default_prompt="usual")
    (call,) = plan_of([("a", "b")], with_default).calls
    assert call.rows == ["U: a", "U: b"]
