from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.embedding import ServedEmbedder
from router.core.record import Record
from router.core.tenant import LOCAL_CALLER, Caller, Scope
from router.kserve.embedding import embedding_offer
from router.kserve.generation import generation_offer
from router.kserve.llmapi import llmapi_offer
from router.kserve.offers import Offer, Offers
from router.routing.models import Lineup, Registry, Served, ServedModel
from router.routing.split import ModelSplit
from tests.fakes.embedder import LIMITS, FakeEmbedder
from tests.fakes.pipeline import FakePipeline
from tests.router.kserve.asking import is_clear, outcome


def make(served: Served) -> Offer:
    return generation_offer(served) if isinstance(served, ServedModel) else embedding_offer(_embedder(served))


def _embedder(served: Served) -> ServedEmbedder:
    assert isinstance(served, ServedEmbedder)
    return served


def release(version: int, name: str = "tiny", triton_name: str = "") -> ServedModel:
    called = triton_name or f"{name}.{version}"
    return ServedModel(name, FakePipeline(), version=version, triton_name=called)


def lineup(*releases: Served, arms: tuple[tuple[int, float], ...] = ()) -> Lineup:
    name = releases[0].name
    split = ModelSplit(name, arms or ((releases[0].version, 1.0),), "salt")
    return Lineup(name, {each.version: each for each in releases}, split)


def offers(*lineups: Lineup) -> Offers:
    registry = Registry()
    registry.publish({each.name: each for each in lineups})
    return Offers(registry, make, llmapi_offer)


def chosen(found: Offers, name: str, version: str = "", **noted: str) -> tuple[str, int]:
    record = Record("grpc ModelInfer", "infer-1", LOCAL_CALLER, **noted)  # type: ignore[arg-type]  # all of them texts
    served = found.choose(name, version, record).served
    assert record.model_version == str(served.version)
    return served.name, served.version


def refused(found: Offers, name: str, version: str = "", caller: Caller = LOCAL_CALLER) -> InflightError:
    error = outcome(lambda: found.find(name, version, caller))
    assert isinstance(error, InflightError)
    return error


BOTH = offers(lineup(release(1, triton_name="ensemble"), release(12)))


def test_a_version_pins_a_release_however_it_is_given() -> None:
    assert chosen(BOTH, "tiny") == ("tiny", 1)
    assert chosen(BOTH, "tiny", "12") == ("tiny", 12)
    assert chosen(BOTH, "tiny@12") == ("tiny", 12)
    assert chosen(BOTH, "tiny@12", "12") == ("tiny", 12)
    assert chosen(BOTH, "tiny", pinned_release="12") == ("tiny", 12)
    assert chosen(BOTH, "ensemble", "12") == ("tiny", 12)
    assert chosen(BOTH, "tiny", "1", pinned_release="12") == ("tiny", 1)


@pytest.mark.parametrize(
    ("name", "version", "why"),
    [
        ("tiny", "2", "has no version '2'; it has 1, 12"),
        ("tiny", "012", "has no version '012'"),
        ("tiny@2", "", "has no version '2'; it has 1, 12"),
        ("tiny@", "", "has no version ''"),
        ("tiny@\0", "", r"has no version '\x00'"),
        ("tiny@12", "1", "has no version '1'; it has 12"),
        ("tiny.12", "", "'tiny.12' does not exist; there are tiny"),
        ("tiny.12.tensorrt_llm", "", "does not exist"),
        ("tensorrt_llm", "", "a step of other models"),
        ("embeddings", "", "does not exist"),
    ],
)
def test_a_model_or_version_that_is_not_served_is_not_found(name: str, version: str, why: str) -> None:
    error = refused(BOTH, name, version)
    assert error.kind is ErrorKind.MODEL_NOT_FOUND
    assert why in error.message


def test_without_a_version_the_split_decides_for_each_request_alone() -> None:
    found = offers(lineup(release(1), release(2), arms=((1, 0.5), (2, 0.5))))
    versions = set()
    for number in range(40):
        record = Record("grpc ModelInfer", f"infer-{number}", LOCAL_CALLER)
        first = found.choose("tiny", "", record).served.version
        assert found.choose("tiny", "", record).served.version == first
        versions.add(first)
    assert versions == {1, 2}
    assert found.find("tiny", "", LOCAL_CALLER).served.version == 2  # the last arm stands for the model


def test_tritons_own_model_name_means_the_model_and_not_its_release() -> None:
    promoted = offers(lineup(release(1, triton_name="ensemble"), release(2), arms=((2, 1.0),)))
    assert chosen(promoted, "ensemble") == ("tiny", 2)


def test_tritons_own_model_name_is_ambiguous_where_several_models_share_it() -> None:
    two = offers(
        lineup(release(1, triton_name="ensemble")), lineup(release(1, "other", triton_name="ensemble"))
    )
    assert "there are tiny, other" in refused(two, "ensemble").message
    own = offers(lineup(release(1, triton_name="ensemble")), lineup(release(1, "ensemble")))
    assert chosen(own, "ensemble") == ("ensemble", 1)


def test_a_model_without_a_loaded_release_is_known_and_cannot_answer() -> None:
    empty = offers(replace(lineup(release(1)), releases={}))
    for name, version in (("tiny", ""), ("tiny", "1"), ("tiny@1", "")):
        assert refused(empty, name, version).kind is ErrorKind.OVERLOADED
    assert empty.for_caller(LOCAL_CALLER) == []


def test_a_key_finds_only_its_own_models() -> None:
    vectors = ServedEmbedder("vectors", FakeEmbedder(), LIMITS)
    found = offers(lineup(release(1)), lineup(release(1, "other")), lineup(vectors))
    key = replace(
        LOCAL_CALLER.key, models=frozenset({"tiny", "vectors"}), scopes=frozenset({Scope.INFERENCE})
    )
    caller = replace(LOCAL_CALLER, key=key)
    assert [offer.served.name for offer in found.for_caller(caller)] == ["tiny"]
    assert refused(found, "other", "9", caller).kind is ErrorKind.FORBIDDEN
    assert "scope embeddings" in refused(found, "vectors", "", caller).message
    assert "there are tiny, vectors" in refused(found, "nothing", "", caller).message


def test_a_published_lineup_counts_from_the_next_request_on() -> None:
    registry = Registry([release(1)])
    found = Offers(registry, make, llmapi_offer)
    assert found.versions(found.find("tiny", "", LOCAL_CALLER)) == ["1"]
    registry.publish({"tiny": lineup(release(10), release(9))})
    assert chosen(found, "tiny") == ("tiny", 10)
    assert found.versions(found.find("tiny", "9", LOCAL_CALLER)) == ["9", "10"]
    assert refused(found, "tiny", "1").kind is ErrorKind.MODEL_NOT_FOUND


TEXT = st.one_of(st.sampled_from(["tiny", "tiny@12", "ensemble", "1", "12", "@", ""]), st.text(max_size=12))


@settings(deadline=None)
@given(TEXT, TEXT, TEXT)
def test_any_model_name_and_version_is_found_or_refused_clearly(name: str, version: str, pinned: str) -> None:
    record = Record("grpc ModelInfer", "infer-1", LOCAL_CALLER, pinned_release=pinned)
    assert is_clear(outcome(lambda: BOTH.choose(name, version, record)), ErrorKind.MODEL_NOT_FOUND)
