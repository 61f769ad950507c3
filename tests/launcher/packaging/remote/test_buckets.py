"""Models in buckets, from a real server of S3's protocol, which Google's XML API shares."""

from __future__ import annotations

import hashlib
import json
import logging
from typing import TYPE_CHECKING

import httpx
import pytest

from launcher.packaging.models.checkpoint import CheckpointError
from launcher.packaging.remote import ranged_download
from launcher.packaging.remote.copies import fetch_model

obstore = pytest.importorskip("obstore")
moto_server = pytest.importorskip("moto.server")

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.launcher.conftest import RecordedProgress

WEIGHTS = bytes(range(256)) * 500


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto_server.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    store = obstore.store.S3Store(
        "models",
        endpoint=url,
        region="us-east-1",
        access_key_id="key",
        secret_access_key="secret",
        client_options={"allow_http": True},
    )
    httpx.put(f"{url}/models", timeout=60).raise_for_status()
    readable = {"x-amz-acl": "public-read"}
    # Its server signs in nobody by Google's tokens: what that test reads, everybody may.
    for path, content in (("open", b""), ("open/llama/model.safetensors", WEIGHTS)):
        httpx.put(f"{url}/{path}", content=content, headers=readable, timeout=60).raise_for_status()
    for name in ("config.json", "tokenizer.json", "nested/config.json"):
        obstore.put(store, f"team/llama/{name}", b"{}")
    for name in ("config.pbtxt", "1/model.py", "1/Libtriton_X.so", "x.pkl", "README.md"):
        obstore.put(store, f"team/llama/{name}", b"not data")
    obstore.put(store, "team/llama/model.safetensors", WEIGHTS)
    obstore.put(store, "team/llama-other/model.safetensors", b"of another model")
    obstore.put(store, "q4.gguf", WEIGHTS)
    yield url
    server.stop()


@pytest.fixture
def s3(endpoint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """By a file of credentials, as a secret is mounted."""
    (tmp_path / "credentials").write_text("[models]\naws_access_key_id=key\naws_secret_access_key=secret\n")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_PROFILE", "models")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", endpoint)
    monkeypatch.setattr(ranged_download, "PART_BYTES", 50_000)
    return endpoint


def test_a_folder_of_a_bucket_is_fetched_in_parts_and_pinned_by_its_content(
    s3: str, tmp_path: Path, progress: RecordedProgress
) -> None:
    copy = fetch_model("s3://models/team/llama", tmp_path / "data", progress)
    files = {path.relative_to(copy.path).as_posix() for path in copy.path.rglob("*") if path.is_file()}
    assert files == {
        "config.json",
        "tokenizer.json",
        "nested/config.json",
        "model.safetensors",
        "manifest.json",
    }
    assert any("not fetched: " in label and "1/model.py" in label for label in progress.labels)
    assert (copy.path / "model.safetensors").read_bytes() == WEIGHTS
    assert copy.pinned.startswith("s3://models/team/llama#sha256=")
    assert fetch_model(copy.pinned, tmp_path / "data", progress).path == copy.path


def test_a_folder_that_is_not_what_its_pin_says_is_refused_and_removed(
    s3: str, tmp_path: Path, progress: RecordedProgress
) -> None:
    with pytest.raises(CheckpointError, match="it was removed"):
        fetch_model(f"s3://models/team/llama#sha256={'0' * 64}", tmp_path / "data", progress)
    assert not list((tmp_path / "data").rglob("*.safetensors*"))


def test_one_file_of_a_bucket_is_checked_against_the_addresss_hash(
    s3: str, tmp_path: Path, progress: RecordedProgress
) -> None:
    digest = hashlib.sha256(WEIGHTS).hexdigest()
    copy = fetch_model(f"s3://models/q4.gguf#sha256={digest}", tmp_path / "data", progress)
    assert copy.path.read_bytes() == WEIGHTS
    assert copy.path.name == "q4.gguf"


@pytest.mark.parametrize("address", ["s3://models/nothing-here", "s3://models/none.gguf"])
def test_what_is_not_in_the_bucket_is_named(
    address: str, s3: str, tmp_path: Path, progress: RecordedProgress
) -> None:
    with pytest.raises(CheckpointError, match=address):
        fetch_model(address, tmp_path / "data", progress)


def test_a_bucket_of_googles_is_read_with_a_service_account_file(
    endpoint: str, tmp_path: Path, progress: RecordedProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    account = {
        "gcs_base_url": endpoint,
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    (tmp_path / "account.json").write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(tmp_path / "account.json"))
    copy = fetch_model("gs://open/llama", tmp_path / "data", progress)
    assert (copy.path / "model.safetensors").read_bytes() == WEIGHTS
