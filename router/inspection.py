"""Checks all that a router with these settings would use, and changes nothing: for `inflight doctor`."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import sqlalchemy as sql

from router.control.peers.board import BoardAway
from router.control.peers.peer_sync import open_board
from router.http.tls import Certificates, tls_files
from router.safety.guard import load_safety
from router.settings import PlacedOptions, SettingsError, check_reachable, load_options
from router.store.database import Store, sqlite_url
from router.store.migrate import SchemaError, pending
from router.store.schema import facts
from router.telemetry.redaction import redact
from router.telemetry.tracing.setup import check_tracing
from router.tenants.keys import fingerprint
from router.tenants.records import has_keys
from router.tenants.tenancy import StoreUnusable, opening_store

_DAY_S = 86_400
_RENEW_DAYS = 21
_CONNECT_TIMEOUT_S = 3.0


class Seen(NamedTuple):
    """Of one part: `verdict` is ok, warn, fail or skipped."""

    check: str
    verdict: str
    what: str
    advice: str = ""


def inspect(file: Path) -> list[Seen]:
    """All of it, whatever part is broken; texts hold no passwords."""
    try:
        settings = load_options(file)
    except SettingsError as error:
        return [Seen("router settings", "fail", str(error), "correct it under [router]")]
    looks: tuple[tuple[str, Callable[[PlacedOptions], Seen]], ...] = (
        ("store", _store),
        ("Redis", _redis),
        ("TLS", _tls),
        ("tracing", _tracing),
        ("safety", _safety),
    )
    seen = [Seen("router settings", "ok", "valid")]
    for check, look in looks:
        try:
            found = look(settings)
        except (SettingsError, StoreUnusable, SchemaError, OSError) as error:
            found = Seen(check, "fail", str(error), "correct it under [router]")
        seen.append(found._replace(what=redact(found.what)))
    return seen


def _store(settings: PlacedOptions) -> Seen:
    state = Path(settings.state_dir or settings.data_dir)
    place = state / "store.db"
    if not settings.store_url and not place.exists():
        check_reachable(settings.host, has_keys=False)
        return Seen("store", "ok", "SQLite, created at the first start")
    with opening_store():
        store = Store(settings.store_url or sqlite_url(place))
        try:
            return _judge_store(settings, store, state)
        finally:
            store.close()


def _judge_store(settings: PlacedOptions, store: Store, state: Path) -> Seen:
    kind = "PostgreSQL" if store.is_postgres else "SQLite"
    with store.read() as connection:
        old, new = pending(connection)
        if old is None:
            return Seen("store", "ok", f"{kind}, empty: the first start creates its tables")
        if old != new:
            advice = "back it up before the next start, which migrates it"
            return Seen("store", "warn", f"{kind} has schema {old}, this version {new}", advice)
        check_reachable(settings.host, has_keys(connection))
        stored = connection.scalar(sql.select(facts.c.value).where(facts.c.name == "pepper_fingerprint"))
    pepper = Path(settings.pepper_file).expanduser() if settings.pepper_file else state / "pepper"
    if stored is not None and not (pepper.exists() and fingerprint(pepper.read_bytes()) == stored):
        advice = "set pepper_file to that of the installation that created the keys"
        return Seen("store", "fail", f"{pepper} is not the pepper that its keys were created with", advice)
    return Seen("store", "ok", f"{kind}, schema {old}")


def _redis(settings: PlacedOptions) -> Seen:
    if not settings.redis_url:
        return Seen("Redis", "skipped", "none: each router counts limits and slots alone")

    async def ask() -> None:
        board = open_board(settings.redis_url, "")
        try:
            await board.ping()
        finally:
            await board.close("")

    try:
        asyncio.run(ask())
    except BoardAway as error:
        advice = "until it is back each router counts alone; check Redis, its password and redis_url"
        return Seen("Redis", "fail", f"it does not answer: {error}", advice)
    return Seen("Redis", "ok", "it answers")


def _tls(settings: PlacedOptions) -> Seen:
    files = tls_files(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    if files is None:
        return Seen("TLS", "skipped", "off: terminate TLS in front of the router, or serve on loopback only")
    Certificates(files)
    return judge_expiry(_expires_s(files.cert), time.time())


def judge_expiry(expires_s: float, now_s: float) -> Seen:
    days = (expires_s - now_s) / _DAY_S
    advice = "renew it: the router reloads the file automatically"
    if days <= 0:
        return Seen("TLS", "fail", f"the certificate expired {-days:.0f} days ago", advice)
    if days < _RENEW_DAYS:
        return Seen("TLS", "warn", f"the certificate expires in {days:.0f} days", advice)
    return Seen("TLS", "ok", f"the certificate is valid for {days:.0f} more days")


def _expires_s(cert: str) -> float:
    decode: Any = ssl._ssl._test_decode_cert  # type: ignore[attr-defined]  # the only decoder in the library
    return float(ssl.cert_time_to_seconds(decode(cert)["notAfter"]))


def _tracing(settings: PlacedOptions) -> Seen:
    check_tracing(settings)
    if not settings.otlp_endpoint:
        return Seen("tracing", "skipped", "off: no otlp_endpoint")
    where = urlsplit(settings.otlp_endpoint)
    port = where.port or (443 if where.scheme == "https" else 80)
    try:
        socket.create_connection((where.hostname or "", port), _CONNECT_TIMEOUT_S).close()
    except OSError as error:
        what = f"nothing answers at {where.hostname}:{port}: {error}"
        return Seen("tracing", "warn", what, "start the collector; until then spans are dropped")
    return Seen("tracing", "ok", f"something answers at {where.hostname}:{port}")


def _safety(settings: PlacedOptions) -> Seen:
    if load_safety(settings.safety_rules, settings.safety_check, (), ()) is None:
        return Seen("safety", "skipped", "no rules and no check")
    return Seen("safety", "ok", "rules and check are valid")
