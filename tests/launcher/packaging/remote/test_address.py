"""Addresses of models: what each form means, and what is said of those that mean nothing."""

from __future__ import annotations

import pytest

from launcher.packaging.remote.address import AddressError, is_address, parse_address

SHA = "ab" * 32
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "place", "path", "revision", "name"),
    [
        ("hf://Qwen/Qwen2.5-0.5B", "Qwen/Qwen2.5-0.5B", "", "", "Qwen2.5-0.5B"),
        (f"hf://Qwen/Qwen2.5-0.5B@{COMMIT}", "Qwen/Qwen2.5-0.5B", "", COMMIT, "Qwen2.5-0.5B"),
        ("hf://a/b@refs%2Fpr%2F1", "a/b", "", "refs/pr/1", "b"),
        ("hf://a/b@v1/q4.gguf", "a/b", "q4.gguf", "v1", "q4"),
        ("s3://bucket/models/llama/", "bucket", "models/llama/", "", "llama"),
        ("gs://bucket/llama.gguf", "bucket", "llama.gguf", "", "llama"),
        ("oci://localhost:5000/models/llama:v2", "localhost:5000", "models/llama", "v2", "llama"),
        (f"oci://r.io/llama@sha256:{SHA}", "r.io", "llama", f"sha256:{SHA}", "llama"),
        ("oci://r.io/llama", "r.io", "llama", "latest", "llama"),
        ("https://host/a%20b/llama.gguf?X-Sig=1", "host", "a b/llama.gguf", "", "llama"),
        ("https://host/llama/", "host", "llama/", "", "llama"),
        ("file:///srv/llama", "", "/srv/llama", "", "llama"),
    ],
)
def test_an_address_names_a_place_and_a_model_in_it(
    text: str, place: str, path: str, revision: str, name: str
) -> None:
    address = parse_address(text)
    assert (address.place, address.path, address.revision, address.name) == (place, path, revision, name)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ftp://host/x.gguf", "allowed are hf://, s3://"),
        ("hf://only-a-name", "expected hf://ORG/NAME"),
        ("hf://a/b/model.safetensors", "a single file must be a .gguf"),
        ("hf://a/../b", "expected hf://ORG/NAME"),
        ("s3://bucket", "expected s3://BUCKET/FOLDER"),
        ("s3://bucket/../x", "expected s3://BUCKET/FOLDER"),
        ("s3://bucket/x#md5=1", "expected #sha256="),
        ("https://host/llama", "expected https://HOST/FILE.gguf"),
        ("http://host/x.gguf", "it could be changed in transit"),
        ("file://host/x", "expected file:///FOLDER"),
        (f"oci://r.io/llama#sha256={SHA}", "pin it by its own digest"),
    ],
)
def test_what_is_no_address_is_refused_with_the_form_that_is(text: str, why: str) -> None:
    with pytest.raises(AddressError) as refused:
        parse_address(text)
    assert why in str(refused.value)


def test_a_password_in_an_address_is_refused_and_not_repeated() -> None:
    with pytest.raises(AddressError) as refused:
        parse_address("https://user:hunter2@host/x.gguf")
    assert "hunter2" not in str(refused.value)
    assert ".netrc" in str(refused.value)


@pytest.mark.parametrize(
    ("text", "pinned"),
    [
        ("hf://a/b@main/x.gguf", f"hf://a/b@{COMMIT}/x.gguf"),
        ("oci://r.io/b:v1", f"oci://r.io/b@{COMMIT}"),
        ("s3://bucket/b", f"s3://bucket/b#sha256={SHA}"),
        ("https://h/b.gguf?secret=1", f"https://h/b.gguf#sha256={SHA}"),
    ],
)
def test_a_pinned_address_can_be_asked_for_again_and_holds_no_secret(text: str, pinned: str) -> None:
    assert parse_address(text).pinned_to(COMMIT, SHA) == pinned
    assert not parse_address(text).is_pinned


def test_what_was_asked_for_tells_pins_apart_and_leaves_the_query_out() -> None:
    first, second = (parse_address(f"https://h/b.gguf?secret=1#sha256={each * 32}") for each in ("ab", "cd"))
    assert first.asked != second.asked
    assert "secret" not in first.asked


def test_pins_are_recognised() -> None:
    pins = (f"hf://a/b@{COMMIT}", f"oci://r.io/b@sha256:{SHA}", f"s3://bucket/b#sha256={SHA}")
    assert all(parse_address(each).is_pinned for each in pins)
    assert not is_address("/srv/models/llama")
