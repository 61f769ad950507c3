"""Redirects of downloads, from real servers with and without TLS."""

from __future__ import annotations

import re
import ssl
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING

import pytest

from launcher.packaging.models.checkpoint import CheckpointError
from launcher.packaging.remote.address import parse_address
from launcher.packaging.remote.copies import fetch_model
from launcher.packaging.remote.looking import open_source
from launcher.packaging.remote.source import SourceError
from launcher.stack.triton_certificates import Authority
from tests.fakes.file_server import COMMIT, FileServer, file_server
from tests.launcher.packaging.remote.test_copies import write_sums

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.launcher.conftest import RecordedProgress


@pytest.fixture
def servers(
    checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[FileServer, FileServer, FileServer]]:
    """Two with TLS, and one without."""
    files = Authority("of these tests").write_for_server(tmp_path)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.certificate, files.key)
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"):
        monkeypatch.setenv(name, str(files.authority))
    write_sums(checkpoint)
    with ExitStack() as stack:
        first, plain, last = [
            stack.enter_context(file_server(checkpoint.parent, context)) for context in (tls, None, tls)
        ]
        yield first, plain, last


def test_a_folder_is_followed_to_another_host_and_the_password_stays_behind(
    servers: tuple[FileServer, FileServer, FileServer],
    nobodys_credentials: Path,
    tmp_path: Path,
    progress: RecordedProgress,
) -> None:
    first, _, last = servers
    (nobodys_credentials / ".netrc").write_text("machine 127.0.0.1 login me password secret\n")
    (nobodys_credentials / ".netrc").chmod(0o600)
    first.moved = {
        f"/Tiny-Llama/{name}": f"{last.url}/Tiny-Llama/{name}" for name in ("SHA256SUMS", "model.safetensors")
    }
    copy = fetch_model(f"{first.url}/Tiny-Llama/", tmp_path / "data", progress)
    assert (copy.path / "model.safetensors").is_file()
    assert first.authorised
    assert last.asked
    assert not last.authorised


def test_a_redirect_through_http_is_refused_before_it_is_followed(
    servers: tuple[FileServer, FileServer, FileServer], tmp_path: Path, progress: RecordedProgress
) -> None:
    first, plain, last = servers
    first.moved = {"/Tiny-Llama/SHA256SUMS": f"{plain.url}/Tiny-Llama/SHA256SUMS"}
    plain.moved = {"/Tiny-Llama/SHA256SUMS": f"{last.url}/Tiny-Llama/SHA256SUMS"}
    with pytest.raises(CheckpointError, match="only https:// is followed"):
        fetch_model(f"{first.url}/Tiny-Llama/", tmp_path / "data", progress)
    assert plain.asked == last.asked == []


@pytest.mark.parametrize("where", [f"/api/models/org/Tiny/revision/{COMMIT}", "Tiny-Llama/tokenizer.json"])
def test_the_hub_is_not_followed_through_http(
    servers: tuple[FileServer, FileServer, FileServer],
    where: str,
    tmp_path: Path,
    progress: RecordedProgress,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    first, plain, last = servers
    path = where if where.startswith("/") else f"/org/Tiny/resolve/{COMMIT}/{where}"
    first.moved, plain.moved = {path: f"{plain.url}{path}"}, {path: f"{last.url}{path}"}
    monkeypatch.setenv("HF_ENDPOINT", first.url)
    with pytest.raises(CheckpointError, match="only https:// is followed"):
        fetch_model(f"hf://org/Tiny@{COMMIT}", tmp_path / "data", progress)
    assert plain.asked == []


def test_a_registry_is_not_followed_through_http(
    servers: tuple[FileServer, FileServer, FileServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("oras")
    first, plain, last = servers
    path = "/v2/team/llama/manifests/v1"
    first.moved, plain.moved = {path: f"{plain.url}{path}"}, {path: f"{last.url}{path}"}
    # Without TLS on loopback is the rule for registries: this one is called by another name.
    monkeypatch.setattr("launcher.packaging.remote.registry._LOOPBACK", re.compile("never"))
    host = first.url.removeprefix("https://")
    with (
        closing(open_source(parse_address(f"oci://{host}/team/llama:v1"))) as registry,
        pytest.raises(SourceError, match="only https:// is followed"),
    ):
        registry.look()
    assert plain.asked == []
