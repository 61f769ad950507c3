"""Models in OCI registries, as `oras push` stores them: a file a layer. Passwords: ~/.docker/config.json."""

from __future__ import annotations

import hashlib
import json
import os
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from launcher.packaging.remote.hops import mount_tls_only
from launcher.packaging.remote.ranged_download import RangedDownload
from launcher.packaging.remote.source import Listing, RemoteFile, SourceError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from launcher.packaging.remote.address import Address

_CHUNK_BYTES = 1 << 20
_TIMEOUT_S = 30.0
_MOST_ANSWER_BYTES = 1 << 20
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
# What `oras` and the CNCF's model format call a file in its layer.
_NAMES = ("org.opencontainers.image.title", "org.cncf.model.filepath")
_PACKED = re.compile(r"tar|zip|gzip|zstd")
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")


class Registry:
    def __init__(self, address: Address) -> None:
        self._address = address
        self._client: Any = None
        # As Docker does: without TLS on this machine alone.
        self._is_plain = bool(_LOOPBACK.fullmatch(address.place))
        self._host = f"{'http' if self._is_plain else 'https'}://{address.place}/v2"

    def look(self) -> Listing:
        address = self._address
        with _as_ours(address.without_pin):
            self._client = self._log_in()
            response = self._get(f"manifests/{address.revision}", {"Accept": _MANIFEST})
            self._require(response, (200,))
            content = response.content
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if address.revision.startswith("sha256:") and digest != address.revision:
            raise SourceError(f"{address.without_pin}: the registry sent {digest}, not {address.revision}")
        try:
            layers = json.loads(content)["layers"]
            return Listing(tuple(self._file(each) for each in layers), digest)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise SourceError(f"{address.without_pin} is not a manifest with layers") from None

    def _log_in(self) -> Any:
        """The client has one way for tokens and one for passwords, and does not find out which is wanted."""
        try:
            import requests
            from oras.provider import Registry as Client
        except ImportError:
            raise SourceError("oci:// needs the package oras: install inflight[oci]") from None
        with requests.Session() as session:
            self._keep_tls(session)
            with session.get(f"{self._host}/", timeout=_TIMEOUT_S, stream=True) as response:
                asked = response.headers.get("WWW-Authenticate", "")
        way = "basic" if asked.lower().startswith("basic") else "token"
        client = Client(self._address.place, insecure=self._is_plain, auth_backend=way)
        for scheme in ("https://", "http://"):
            client.session.mount(scheme, bounded_answers())
        self._keep_tls(client.session)
        container = client.get_container(f"{self._address.place}/{self._address.path}")
        client.auth.load_configs(container, _docker_configs())
        if way == "basic" and not getattr(client.auth, "_basic_auth", None):
            raise ValueError("no password")
        return client

    def _keep_tls(self, session: Any) -> None:
        if not self._is_plain:
            mount_tls_only(session)

    def _file(self, layer: dict[str, Any]) -> RemoteFile:
        notes = layer.get("annotations") or {}
        name = next((notes[key] for key in _NAMES if notes.get(key)), "")
        if not name or _PACKED.search(str(layer.get("mediaType"))):
            raise SourceError(
                f"{self._address.without_pin} has a layer that is not one file with a name; push the files "
                "of the model themselves: oras push REGISTRY/NAME:TAG config.json tokenizer.json ..."
            )
        digest = str(layer["digest"])
        if not re.fullmatch("sha256:[0-9a-f]{64}", digest):
            raise SourceError(f"{self._address.without_pin}: {name} has the digest {digest!r}, not a sha256")
        return RemoteFile(name, int(layer["size"]), digest, digest.removeprefix("sha256:"))

    def download(self, listing: Listing, into: Path, advance: Callable[[int], None]) -> None:
        if self._client is None:  # it was looked at by another process
            with _as_ours(self._address.without_pin):
                self._client = self._log_in()
        RangedDownload(self, advance).run(listing.files, into)

    def close(self) -> None:
        if self._client is not None:
            self._client.session.close()

    def read(self, file: RemoteFile, begin: int, end: int) -> Iterator[bytes]:
        headers = {"Range": f"bytes={begin}-{end - 1}"}
        with _as_ours(self._address.without_pin), self._get(f"blobs/{file.tag}", headers) as response:
            # A registry without ranges sends the whole: what is not wanted of it is read past.
            skip = 0 if response.status_code == 206 else begin
            self._require(response, (200, 206))
            left = end - begin
            for data in response.iter_content(_CHUNK_BYTES):
                dropped = min(skip, len(data))
                skip -= dropped
                piece = data[dropped : dropped + left]
                left -= len(piece)
                if piece:
                    yield piece
                if not left:
                    return

    def _get(self, path: str, headers: dict[str, str]) -> Any:
        """Answers the registry's question for a token; without the client's own pauses, which are minutes."""
        client = self._client
        url = f"{self._host}/{self._address.path}/{path}"
        return client.do_request.__wrapped__(client, url, headers=headers, stream=True)

    def _require(self, response: Any, allowed: tuple[int, ...]) -> None:
        where = f"{self._address.without_pin}:{self._address.revision}"
        if response.status_code == 404:
            raise SourceError(f"{where} was not found")
        if response.status_code in (401, 403):
            raise SourceError(f"no permission to read {where}: log in with `docker login` or `oras login`")
        if response.status_code not in allowed:
            raise Unreachable(f"{where}: the registry answers {response.status_code}")


def bounded_answers() -> Any:
    """Answers that are not read piece by piece, such as tokens, are of this size at most."""
    from requests.adapters import HTTPAdapter
    from requests.exceptions import ContentDecodingError

    class Bounded(HTTPAdapter):
        def send(self, request: Any, stream: bool = False, **how: Any) -> Any:  # type: ignore[override]
            response = super().send(request, stream=stream, **how)
            if not stream:
                content = response.raw.read(_MOST_ANSWER_BYTES + 1, decode_content=True)
                if len(content) > _MOST_ANSWER_BYTES:
                    response.close()
                    raise ContentDecodingError(
                        f"more than {_MOST_ANSWER_BYTES} bytes in answer to a question"
                    )
                response._content, response._content_consumed = content, True
            return response

    return Bounded()


@contextmanager
def _as_ours(where: str) -> Iterator[None]:
    import requests

    try:
        yield
    except requests.RequestException as error:
        raise Unreachable(f"{where} cannot be read: {error}") from None
    except ValueError:  # the registry wants a password, and there is none
        raise SourceError(
            f"no permission to read {where}: log in with `docker login` or `oras login`"
        ) from None


def _docker_configs() -> list[str]:
    """Where DOCKER_CONFIG leads; without it the client looks in the usual places."""
    folder = os.environ.get("DOCKER_CONFIG")
    return [os.path.join(folder, "config.json")] if folder else []
