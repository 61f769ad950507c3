"""Locust's web page, for those who know its password: whoever starts a run there sends with our keys."""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

logger = logging.getLogger(__name__)

PASSWORD_VARIABLE = "INFLIGHT_LOCUST_PASSWORD"
USER = "inflight"
# Where keys are sent, and which files are read and written, is said on the command line alone.
FIXED = ("host", "grpc_address", "tenants", "trace", "results")
_SAME_SITE = ("same-origin", "none")


@dataclass(frozen=True)
class Refused:
    status: int
    why: str


def judge(
    password: str, method: str, headers: Mapping[str, str], form: Mapping[str, str], fixed: Mapping[str, str]
) -> Refused | None:
    """Whether the page answers; browsers send a known password along with forms of other pages too."""
    if not _knows(password, headers.get("Authorization", "")):
        return Refused(401, f"the user is {USER}; the password was printed when Locust started")
    if method in ("GET", "HEAD"):
        return None
    origin = headers.get("Origin", "")
    if headers.get("Sec-Fetch-Site", "none") not in _SAME_SITE or (
        origin and urlsplit(origin).netloc != headers.get("Host", "")
    ):
        return Refused(403, "a page of another site may not start or stop a run")
    for name, value in fixed.items():
        if form.get(name, value).rstrip("/") != value.rstrip("/"):
            return Refused(403, f"{name} is {value!r}, and can only be changed on Locust's command line")
    return None


def _knows(password: str, authorization: str) -> bool:
    scheme, _, encoded = authorization.partition(" ")
    try:
        given = base64.b64decode(encoded, validate=True)
    except binascii.Error:
        return False
    return scheme.lower() == "basic" and hmac.compare_digest(given, f"{USER}:{password}".encode())


def guard(environment: Any, **_: Any) -> None:
    """A listener of Locust's init event."""
    if environment.web_ui is None:
        return
    from flask import Response, request

    password = os.environ.pop(PASSWORD_VARIABLE, "")
    if not password:
        password = secrets.token_urlsafe(12)
        logger.warning("Locust's page asks for the user %s with the password %s", USER, password)
    options = environment.parsed_options
    fixed = {name: str(getattr(options, name, "") or "") for name in FIXED}

    @environment.web_ui.app.before_request  # type: ignore[untyped-decorator]
    def admit() -> Response | None:
        refused = judge(password, request.method, dict(request.headers), request.form, fixed)
        if refused is None:
            return None
        headers = {"WWW-Authenticate": 'Basic realm="Locust"'} if refused.status == 401 else {}
        return Response(f"{refused.why}\n", refused.status, headers)
