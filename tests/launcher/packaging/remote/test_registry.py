"""Models in OCI registries, from a real one."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from launcher.packaging.models.checkpoint import CheckpointError
from launcher.packaging.remote import ranged_download
from launcher.packaging.remote.copies import fetch_model
from launcher.stack.ports import claim_port
from tests.debian import debian_program
from tests.launcher.commands.release.materials import write_checkpoint

pytest.importorskip("oras")

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.launcher.conftest import RecordedProgress

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
# As htpasswd -B writes it.
PASSWORDS = "user:$2b$04$mvXz5Ms6pLDPHHYQbJgBBOGKmlmXX9JkNfOrghWNt3okGqcp1ae.6\n"
SERVED = ("config.json", "tokenizer.json", "model.safetensors")


class Registry:
    def __init__(self, url: str) -> None:
        self.host = url.removeprefix("http://")
        self._client = httpx.Client(
            base_url=f"{url}/v2/team/llama", follow_redirects=True, auth=("user", "password"), timeout=60
        )

    def push(
        self,
        checkpoint: Path,
        tag: str,
        media_type: str = "application/octet-stream",
        names: tuple[str, ...] = SERVED,
    ) -> str:
        """As `oras push` does; gives the manifest's digest."""
        layers = [self._layer(checkpoint / name, media_type) for name in names]
        config = self._blob(b"{}")
        manifest = {"schemaVersion": 2, "mediaType": MANIFEST, "config": config, "layers": layers}
        content = json.dumps(manifest).encode()
        self._client.put(
            f"/manifests/{tag}", content=content, headers={"Content-Type": MANIFEST}
        ).raise_for_status()
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    def _layer(self, path: Path, media_type: str) -> dict[str, object]:
        names = {"org.opencontainers.image.title": path.name}
        return {**self._blob(path.read_bytes()), "mediaType": media_type, "annotations": names}

    def _blob(self, content: bytes) -> dict[str, object]:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        begun = self._client.post("/blobs/uploads/")
        place = httpx.URL(begun.headers["Location"]).copy_add_param("digest", digest)
        self._client.put(place, content=content).raise_for_status()
        return {"mediaType": "application/vnd.oci.empty.v1+json", "digest": digest, "size": len(content)}

    def close(self) -> None:
        self._client.close()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    program = debian_program("docker-registry", "docker-registry")
    place = tmp_path_factory.mktemp("registry")
    port = claim_port("127.0.0.1", 0, "", set())
    settings = {
        "version": 0.1,
        "log": {"level": "error"},
        "storage": {"filesystem": {"rootdirectory": str(place / "data")}},
        "auth": {"htpasswd": {"realm": "models", "path": str(place / "passwords")}},
        "http": {"addr": f"127.0.0.1:{port}"},
    }
    (place / "passwords").write_text(PASSWORDS)
    (place / "config.yml").write_text(json.dumps(settings))
    with (place / "log").open("wb") as log:
        process = subprocess.Popen([program, "serve", place / "config.yml"], stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    deadline_s = time.monotonic() + 30
    while True:
        try:
            httpx.get(f"{url}/v2/")
            break
        except httpx.HTTPError:
            assert process.poll() is None, (place / "log").read_text()
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
    found = Registry(url)
    yield found
    found.close()
    process.terminate()
    process.wait()


@pytest.fixture(autouse=True)
def logged_in(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As `docker login` leaves it, or a secret is mounted."""
    folder = tmp_path / "docker"
    folder.mkdir()
    auth = base64.b64encode(b"user:password").decode()
    (folder / "config.json").write_text(json.dumps({"auths": {registry.host: {"auth": auth}}}))
    monkeypatch.setenv("DOCKER_CONFIG", str(folder))
    return folder


def test_a_registry_is_not_read_without_its_password(
    registry: Registry, logged_in: Path, tmp_path: Path, progress: RecordedProgress
) -> None:
    (logged_in / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no permission to read .*: log in with `docker login`"):
        fetch_model(f"oci://{registry.host}/team/llama:v1", tmp_path / "data", progress)


def test_a_tag_is_fetched_in_parts_and_pinned_to_its_digest(
    registry: Registry, tmp_path: Path, progress: RecordedProgress, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranged_download, "PART_BYTES", 100)
    digest = registry.push(write_checkpoint(tmp_path / "there"), "v1")
    copy = fetch_model(f"oci://{registry.host}/team/llama:v1", tmp_path / "data", progress)
    assert copy.pinned == f"oci://{registry.host}/team/llama@{digest}"
    assert copy.path.name == "llama"
    for name in SERVED:
        assert (copy.path / name).read_bytes() == (tmp_path / "there" / name).read_bytes()
    again = fetch_model(copy.pinned, tmp_path / "data", progress)
    assert again.path == copy.path


def test_layers_that_are_not_data_stay_in_the_registry(
    registry: Registry, tmp_path: Path, progress: RecordedProgress
) -> None:
    checkpoint = write_checkpoint(tmp_path / "there")
    code = ("config.pbtxt", "model.py", "LIBTRITON_X.SO", "all.tar")
    for name in code:
        (checkpoint / name).write_text(f"runs code: {name}")
    registry.push(checkpoint, "code", names=(*SERVED, *code))
    copy = fetch_model(f"oci://{registry.host}/team/llama:code", tmp_path / "data", progress)
    assert {path.name for path in copy.path.iterdir()} == {*SERVED, "manifest.json"}
    registry.push(checkpoint, "only-code", names=code)
    with pytest.raises(CheckpointError, match="is a Triton model"):
        fetch_model(f"oci://{registry.host}/team/llama:only-code", tmp_path / "data", progress)


def test_a_tag_that_moved_is_another_copy(
    registry: Registry, tmp_path: Path, progress: RecordedProgress
) -> None:
    address = f"oci://{registry.host}/team/llama:moving"
    registry.push(write_checkpoint(tmp_path / "old"), "moving")
    old = fetch_model(address, tmp_path / "data", progress)
    registry.push(write_checkpoint(tmp_path / "new", fill=7), "moving")
    new = fetch_model(address, tmp_path / "data", progress)
    assert old.path != new.path
    assert (old.path / "model.safetensors").read_bytes() != (new.path / "model.safetensors").read_bytes()


def test_a_tag_that_is_not_there_is_named(
    registry: Registry, tmp_path: Path, progress: RecordedProgress
) -> None:
    with pytest.raises(CheckpointError, match="team/llama:v9 was not found"):
        fetch_model(f"oci://{registry.host}/team/llama:v9", tmp_path / "data", progress)


def test_an_image_of_packed_layers_is_refused_with_what_to_push(
    registry: Registry, tmp_path: Path, progress: RecordedProgress
) -> None:
    packed = "application/vnd.oci.image.layer.v1.tar+gzip"
    registry.push(write_checkpoint(tmp_path / "there"), "packed", packed)
    with pytest.raises(CheckpointError, match="oras push"):
        fetch_model(f"oci://{registry.host}/team/llama:packed", tmp_path / "data", progress)
