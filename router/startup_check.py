"""Whether a router could start with its settings, told without importing all that would serve."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from router.control.peers.peer_sync import open_board
from router.http.tls import Certificates, tls_files
from router.safety.guard import load_safety
from router.settings import check_reachable
from router.telemetry.tracing.setup import check_tracing
from router.tenants.records import has_keys
from router.tenants.tenancy import TenancySettings, open_store, opening_store, tenancy_settings

if TYPE_CHECKING:
    from router.settings import PlacedOptions


def check(settings: PlacedOptions) -> None:
    """As far as that can be told beforehand."""
    with opening_store(), open_store(tenancy_settings_of(settings)) as store, store.read() as connection:
        check_reachable(settings.host, has_keys(connection))
    load_certificates(settings)
    check_tracing(settings)
    load_safety(settings.safety_rules, settings.safety_check, (), ())
    if settings.redis_url:
        open_board(settings.redis_url, "")


def load_certificates(settings: PlacedOptions) -> Certificates | None:
    files = tls_files(settings.tls_cert, settings.tls_key, settings.tls_client_ca)
    return None if files is None else Certificates(files)


def tenancy_settings_of(settings: PlacedOptions) -> TenancySettings:
    return tenancy_settings(
        Path(settings.state_dir or settings.data_dir),
        settings.store_url,
        settings.pepper_file,
        settings.max_spool_bytes,
    )
