"""Redirects of downloads: one that begins with TLS is refused before it goes on without."""

from __future__ import annotations

from typing import Any

from launcher.packaging.remote.source import SourceError, shown


def require_tls(url: str) -> None:
    if not url.lower().startswith("https://"):
        raise SourceError(
            f"the download was redirected to {shown(url)}, where it could be changed in transit: only "
            "https:// is followed"
        )


def request_hook(request: Any) -> None:
    """For a client of httpx, which calls it for each hop."""
    require_tls(str(request.url))


def mount_tls_only(session: Any) -> None:
    """Leave a session of `requests` no way to ask without TLS."""
    session.mount("http://", _plain_refused())


def _plain_refused() -> Any:
    from requests.adapters import BaseAdapter

    class PlainRefused(BaseAdapter):
        def send(self, request: Any, *_: Any, **__: Any) -> Any:
            require_tls(str(request.url))

        def close(self) -> None:
            """It has no connections."""

    return PlainRefused()


def keep_tls_of_hub(endpoint: str | None = None) -> None:
    """The same for the Hub's own client, unless the operator named a mirror that has no TLS."""
    from huggingface_hub import constants, set_client_factory
    from huggingface_hub.utils._http import default_client_factory

    def client() -> Any:
        made = default_client_factory()
        if (endpoint or constants.ENDPOINT).lower().startswith("https://"):
            made.event_hooks["request"].append(request_hook)
        return made

    set_client_factory(client)
