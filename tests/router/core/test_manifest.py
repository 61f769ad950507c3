from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.core.manifest import (
    LARGEST_VERSION,
    FileMark,
    Kind,
    Manifest,
    Needs,
    entry_name,
    from_json,
    member_name,
    parent_of,
    read_version,
    split_name,
)

model_names = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,63}", fullmatch=True)
versions = st.integers(1, LARGEST_VERSION)
words = st.text(max_size=12)
sizes = st.integers(0, 2**60)
manifests = st.builds(
    Manifest,
    model_names,
    versions,
    st.sampled_from(Kind),
    st.lists(st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,20}", fullmatch=True), min_size=1, max_size=4).map(
        tuple
    ),
    words,
    words,
    words,
    words,
    st.dictionaries(words, words, max_size=3),
    st.builds(Needs, sizes, sizes),
    st.lists(st.builds(FileMark, words, sizes, words), max_size=3).map(tuple),
    st.booleans(),
)
ONE = Manifest("m", 1, Kind.TEXT, ("m.1",), weights_sha256="a", parameters={"b": "1", "a": "2"})
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@given(manifests)
def test_a_manifest_is_read_as_it_was_written(manifest: Manifest) -> None:
    again = from_json(manifest.to_json())
    assert again == manifest
    assert (again.digest, again.identity) == (manifest.digest, manifest.identity)


@pytest.mark.parametrize(
    "change",
    [
        {"model": "n"},
        {"version": 2},
        {"kind": Kind.TENSORS},
        {"members": ("m.1", "m.2")},
        {"engine": "e"},
        {"checkpoint_dir": "d"},
        {"weights_sha256": "b"},
        {"tokenizer_sha256": "b"},
        {"parameters": {"a": "2"}},
        {"needs": Needs(1)},
        {"files": (FileMark("f", 1, "x"),)},
        {"is_built_in": True},
        {"source": "hf://a/b@c"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_any_difference_in_a_manifest_changes_its_digest(change: dict[str, Any]) -> None:
    assert replace(ONE, **change).digest != ONE.digest


def test_a_release_without_an_address_has_the_digest_of_before_there_were_any() -> None:
    assert "source" not in json.loads(ONE.to_json())
    assert from_json(replace(ONE, source="hf://a/b@c").to_json()).source == "hf://a/b@c"


def test_the_order_of_parameters_does_not_change_the_digest() -> None:
    assert replace(ONE, parameters={"a": "2", "b": "1"}).digest == ONE.digest


def test_releases_of_equal_content_have_one_identity_whatever_their_number() -> None:
    other = replace(ONE, version=2, members=("m.2",))
    assert other.identity == ONE.identity
    assert replace(other, weights_sha256="b").identity != ONE.identity


@given(json_values, st.sampled_from(sorted(json.loads(ONE.to_json()))))
def test_an_invalid_manifest_is_refused_with_a_value_error(value: Any, field: str) -> None:
    for text in (json.dumps(value), json.dumps({**json.loads(ONE.to_json()), field: value})):
        try:
            read = from_json(text)
        except ValueError:
            continue
        assert isinstance(read, Manifest)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "null", "[]", '{"model": "m"}'])
def test_a_manifest_that_is_not_json_is_refused_with_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        from_json(text)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": "../up"}, "cannot be the name of a model"),
        ({"model": ""}, "cannot be the name of a model"),
        ({"model": "m" * 65}, "1 to 64"),
        ({"model": "m@1"}, "cannot be the name of a model"),
        ({"version": 0}, "version 0"),
        ({"version": 2**31}, "allowed: 1 to"),
        ({"version": 1.5}, "version 1.5"),
        ({"version": True}, "version True"),
        ({"members": ()}, "at least one Triton model"),
        ({"members": ("../m",)}, "name of a Triton model"),
    ],
)
def test_a_bad_model_name_or_version_is_named_in_the_error(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replace(ONE, **change)


@given(model_names, versions)
def test_a_pin_is_read_as_it_is_written(model: str, version: int) -> None:
    assert split_name(f"{model}@{version}") == (model, version)
    assert split_name(model) == (model, None)


@given(st.text(max_size=12))
def test_a_version_has_one_spelling(text: str) -> None:
    try:
        version = read_version(text)
    except ValueError:
        return
    assert str(version) == text


@pytest.mark.parametrize(
    "version", ["", "0", "01", "-1", "+1", "1.0", "x", "²", "١", "2147483648", "1" * 5000]
)
def test_a_pin_that_is_not_a_number_is_refused(version: str) -> None:
    with pytest.raises(ValueError, match="is not a version") as refused:
        split_name(f"m@{version}")
    assert len(str(refused.value)) < 80


def test_the_triton_models_of_two_releases_never_share_a_name() -> None:
    steps = ("preprocessing", "tensorrt_llm", "postprocessing")
    releases = [(model, version) for model in ("a", "a.1", "a.1.1", "a-1") for version in (1, 11)]
    named = [entry_name(*each) for each in releases]
    named += [member_name(*each, step) for each in releases for step in steps]
    assert len(set(named)) == len(named)


ADAPTER = Manifest("tiny:sql", 2, Kind.TEXT, ("ensemble",), "tensorrt_llm", base="tiny@1")


def test_an_adapter_is_named_after_its_base_and_goes_to_the_bases_pipeline() -> None:
    assert (ADAPTER.name, ADAPTER.entry, ADAPTER.adapter) == ("tiny:sql@2", "ensemble", "tiny.LORA.sql.2")
    assert parent_of(ADAPTER.model) == "tiny"
    assert parent_of("tiny") is None
    assert replace(ADAPTER, model="tiny", base="").adapter == ""
    assert from_json(ADAPTER.to_json()) == ADAPTER
    assert "base" not in json.loads(replace(ADAPTER, model="tiny", base="").to_json())


@pytest.mark.parametrize(("model", "base"), [("tiny:sql", ""), ("tiny", "tiny@1"), ("tiny:sql", "other@1")])
def test_a_name_and_a_base_that_do_not_belong_together_are_refused(model: str, base: str) -> None:
    with pytest.raises(ValueError, match="is not the name of an adapter of"):
        replace(ADAPTER, model=model, base=base)


@pytest.mark.parametrize("model", ["tiny:", ":sql", "tiny:a:b", "tiny:A"])
def test_an_adapters_name_is_two_names(model: str) -> None:
    with pytest.raises(ValueError, match="BASE:NAME"):
        replace(ADAPTER, model=model)
