"""Models in buckets, s3:// and gs://, by obstore: credentials of the environment, files or the cloud."""

from __future__ import annotations

import configparser
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.packaging.remote.ranged_download import RangedDownload
from launcher.packaging.remote.source import Listing, RemoteFile, SourceError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from launcher.packaging.remote.address import Address

_CHUNK_BYTES = 4 << 20
_CREDENTIALS = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


class Bucket:
    def __init__(self, address: Address, environment: Mapping[str, str] = os.environ) -> None:
        self._address = address
        self._prefix = "" if address.is_one_file else address.path.rstrip("/") + "/"
        self._store = _open(address, environment)

    def look(self) -> Listing:
        import obstore

        address = self._address
        with _told_as_ours(address):
            if address.is_one_file:
                found = [obstore.head(self._store, address.path)]
            else:
                # Not below FOLDER/ but FOLDER: the client adds the slash itself.
                prefix = address.path.rstrip("/")
                found = [each for chunk in obstore.list(self._store, prefix) for each in chunk]
        files = tuple(self._file(each) for each in found if not each["path"].endswith("/"))
        if not files:
            raise SourceError(f"{address.without_pin}: that folder is empty")
        return Listing(files)

    def download(self, listing: Listing, into: Path, advance: Callable[[int], None]) -> None:
        RangedDownload(self, advance).run(listing.files, into)

    def close(self) -> None:
        """The client ends its connections with itself."""

    def read(self, file: RemoteFile, begin: int, end: int) -> Iterator[bytes]:
        import obstore

        key = self._address.path if self._address.is_one_file else self._prefix + file.name
        options: dict[str, Any] = {"range": (begin, end)}
        if file.tag:
            options["if_match"] = file.tag
        with _told_as_ours(self._address):
            yield from obstore.get(self._store, key, options=options).stream(min_chunk_size=_CHUNK_BYTES)

    def _file(self, meta: Any) -> RemoteFile:
        path = meta["path"]
        name = path.rsplit("/", 1)[-1] if self._address.is_one_file else path.removeprefix(self._prefix)
        return RemoteFile(name, int(meta["size"]), meta.get("e_tag") or "")


def _open(address: Address, environment: Mapping[str, str]) -> Any:
    try:
        from obstore.store import from_url
    except ImportError:
        raise SourceError(
            f"{address.scheme}:// needs the package obstore: install inflight[buckets]"
        ) from None
    options: dict[str, Any] = {}
    if address.scheme == "s3":
        options = {**_of_credentials_file(environment), **_of_endpoint(environment)}
    # What is left comes from AWS_* and GOOGLE_*, a web identity, or the machine's own role.
    return from_url(f"{address.scheme}://{address.place}", **options)


def _of_credentials_file(environment: Mapping[str, str]) -> dict[str, str]:
    """Of ~/.aws/credentials, or of AWS_SHARED_CREDENTIALS_FILE, unless there are keys in the environment."""
    if environment.get("AWS_ACCESS_KEY_ID"):
        return {}
    place = environment.get("AWS_SHARED_CREDENTIALS_FILE") or "~/.aws/credentials"
    reader = configparser.ConfigParser(interpolation=None)
    try:
        reader.read(Path(place).expanduser(), encoding="utf-8")
    except (configparser.Error, UnicodeDecodeError) as error:
        raise SourceError(f"{place} cannot be read: {error}") from None
    profile = environment.get("AWS_PROFILE") or "default"
    if not reader.has_section(profile):
        return {}
    given = dict(reader[profile])
    return {key: given[key] for key in (*_CREDENTIALS, "region") if key in given}


def _of_endpoint(environment: Mapping[str, str]) -> dict[str, Any]:
    """A store of one's own: boto's variable for it, and plain HTTP where it says so."""
    endpoint = environment.get("AWS_ENDPOINT_URL_S3") or environment.get("AWS_ENDPOINT_URL") or ""
    if not endpoint:
        return {}
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or "us-east-1"
    plain = {"client_options": {"allow_http": True}} if endpoint.startswith("http://") else {}
    return {"endpoint": endpoint, "region": region, **plain}


@contextmanager
def _told_as_ours(address: Address) -> Iterator[None]:
    """Errors of obstore in our words: it is not there, or it cannot be reached."""
    from obstore import exceptions

    where = address.without_pin
    try:
        yield
    except FileNotFoundError:
        raise SourceError(f"{where} was not found") from None
    except exceptions.PreconditionError:
        raise SourceError(f"{where} changed during the download: start again") from None
    except (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError):
        raise SourceError(f"these credentials have no permission to read {where}") from None
    except (exceptions.BaseError, OSError) as error:
        raise Unreachable(f"{where} cannot be read: {str(error).splitlines()[0]}") from None
