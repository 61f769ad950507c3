"""Models on the Hugging Face Hub, by its own client: HF_TOKEN or HF_TOKEN_PATH, HF_ENDPOINT for a mirror."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.packaging.remote.hops import keep_tls_of_hub
from launcher.packaging.remote.source import Listing, RemoteFile, SourceError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from launcher.packaging.remote.address import Address

POLL_S = 0.2
# The same weights once more, in a repository that has safetensors.
OTHER_FORMATS = ("*.onnx*", "original/*", "onnx/*", "openvino/*", "coreml/*", "metal/*")
# In a process of its own: it can be ended at any moment, and the next one goes on where it was.
_DOWNLOAD = """
import json, sys
from huggingface_hub import snapshot_download
from launcher.packaging.remote.hops import keep_tls_of_hub
keep_tls_of_hub()
snapshot_download(**json.load(sys.stdin))
"""


class HubRepository:
    def __init__(self, address: Address, environment: Mapping[str, str] = os.environ) -> None:
        self._address = address
        self._environment = environment
        self._endpoint = environment.get("HF_ENDPOINT") or None

    def look(self) -> Listing:
        from huggingface_hub import HfApi, errors

        keep_tls_of_hub(self._endpoint)
        address, where = self._address, self._address.without_pin.rstrip("/")
        api = HfApi(endpoint=self._endpoint, token=_token(self._environment))
        try:
            info = api.model_info(address.place, revision=address.revision or None, files_metadata=True)
        except errors.GatedRepoError:
            raise SourceError(f"{where}: gated, and HF_TOKEN's account has not accepted its terms") from None
        except errors.RevisionNotFoundError:
            raise SourceError(f"{where} has no revision {address.revision!r}") from None
        except errors.RepositoryNotFoundError:
            raise SourceError(f"{where} was not found, or HF_TOKEN has no permission to read it") from None
        except errors.HfHubHTTPError as error:
            if error.response is not None and error.response.status_code in (401, 403):
                raise SourceError(f"no permission to read {where}: check HF_TOKEN_PATH or HF_TOKEN") from None
            raise Unreachable(f"{where} cannot be read: {_first_line(error)}") from None
        except SourceError:
            raise
        except Exception as error:  # its HTTP library's own, whichever that is today
            raise Unreachable(f"{where} cannot be reached: {_first_line(error)}") from None
        return self._wanted([_file(each) for each in info.siblings or []], str(info.sha))

    def _wanted(self, files: list[RemoteFile], revision: str) -> Listing:
        """The file that is named; or all but .gguf files, of which a repository has several."""
        address = self._address
        if address.is_one_file:
            chosen = tuple(each for each in files if each.name == address.path)
            if not chosen:
                there = ", ".join(sorted(each.name for each in files if each.name.endswith(".gguf")))
                has = f"; it has {there}" if there else ""
                raise SourceError(f"hf://{address.place} has no {address.path}{has}")
            return Listing(chosen, revision)
        names = [each.name.lower() for each in files]
        has_safetensors = any(name.endswith(".safetensors") for name in names)
        unwanted = ("*.gguf", *(OTHER_FORMATS if has_safetensors else ()))
        is_left_out = [any(fnmatchcase(name, one) for one in unwanted) for name in names]
        return Listing(
            tuple(each for each, is_out in zip(files, is_left_out, strict=True) if not is_out),
            revision,
            tuple(each for each, is_out in zip(files, is_left_out, strict=True) if is_out),
        )

    def close(self) -> None:
        """The client has none of its own."""

    def download(self, listing: Listing, into: Path, advance: Callable[[int], None]) -> None:
        order = {
            "repo_id": self._address.place,
            "revision": listing.revision,
            "local_dir": str(into),
            "allow_patterns": [_literal(file.name) for file in listing.files],
            "endpoint": self._endpoint,
        }
        environment = {
            **self._environment,
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        with (into / ".hub.log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-c", _DOWNLOAD],
                env=environment,
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        try:
            assert child.stdin is not None
            with child.stdin as told:
                told.write(json.dumps(order).encode())
            while child.poll() is None:
                advance(min(bytes_in(into), listing.total_bytes))
                time.sleep(POLL_S)
        finally:
            child.kill()
            child.wait()
        said = (into / ".hub.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
        # Where the Hub does not answer, its client is content with a folder that is there.
        missing = [file.name for file in listing.files if not (into / file.name).is_file()]
        if child.returncode or missing:
            why = said[-1] if said else f"status {child.returncode}, without {', '.join(missing)}"
            raise Unreachable(f"{self._address.without_pin.rstrip('/')}: the download failed: {why}")


def _file(sibling: Any) -> RemoteFile:
    return RemoteFile(
        sibling.rfilename,
        int(sibling.size or 0),
        str(sibling.blob_id or ""),
        str(sibling.lfs.sha256) if sibling.lfs else "",
    )


def _token(environment: Mapping[str, str]) -> str | None:
    """None leaves it to the client: a token of `hf auth login`."""
    if environment.get("HF_TOKEN"):
        return environment["HF_TOKEN"]
    file = environment.get("HF_TOKEN_PATH")
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").strip() if file else None
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"HF_TOKEN_PATH: {file} cannot be read: {error}") from None


def _literal(name: str) -> str:
    """A pattern that fits this name alone."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in name)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def bytes_in(directory: Path) -> int:
    total = 0
    for folder, _, names in os.walk(directory):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_blocks * 512
            except FileNotFoundError:  # renamed meanwhile
                continue
    return total
