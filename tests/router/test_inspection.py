"""What a router would use is looked at without changing any of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import sqlalchemy as sql
import trustme

from router.inspection import Seen, inspect, judge_expiry
from router.store.database import Store, sqlite_url
from router.store.migrate import pending
from router.tenants.tenancy import open_administration

DAY_S = 86_400


def looked_at(tmp_path: Path, more: str = "", host: str = "127.0.0.1") -> dict[str, Seen]:
    file = tmp_path / "router.toml"
    file.write_text(f'data_dir = "{tmp_path / "data"}"\nhost = "{host}"\n{more}')
    return {each.check: each for each in inspect(file)}


def test_inspecting_a_router_that_was_never_started_creates_nothing(tmp_path: Path) -> None:
    found = looked_at(tmp_path)
    assert found["store"] == ("store", "ok", "SQLite, created at the first start", "")
    assert not (tmp_path / "data").exists()


def test_invalid_settings_are_the_only_finding(tmp_path: Path) -> None:
    (found,) = looked_at(tmp_path, "nonsense = 1").values()
    assert (found.check, found.verdict) == ("router settings", "fail")
    assert "unknown setting nonsense" in found.what


def test_each_part_is_reported_whatever_the_others_are(tmp_path: Path) -> None:
    with open_administration(tmp_path / "data"):
        pass
    (tmp_path / "data" / "pepper").write_bytes(b"x" * 32)
    found = looked_at(
        tmp_path,
        'redis_url = "redis://:hidden@127.0.0.1:1"\ntls_cert = "none.pem"\ntls_key = "none.pem"\n'
        'otlp_endpoint = "http://127.0.0.1:1"\nsafety_rules = "none.toml"\n',
    )
    assert "is not the pepper" in found["store"].what
    assert "does not answer" in found["Redis"].what
    assert "none.pem" in found["TLS"].what
    assert found["tracing"].verdict == "warn"
    assert "nothing answers at 127.0.0.1:1" in found["tracing"].what
    assert found["safety"].verdict == "fail"
    assert "hidden" not in str(found)


def test_a_store_is_healthy_old_empty_or_newer(tmp_path: Path) -> None:
    with open_administration(tmp_path / "data"):
        pass
    assert looked_at(tmp_path)["store"].verdict == "ok"
    store = Store(sqlite_url(tmp_path / "data" / "store.db"))
    with store.read() as connection:
        newest = pending(connection)[1]

    def become(schema: str) -> Seen:
        with store.begin() as connection:
            connection.execute(sql.text("update alembic_version set version_num = :new"), {"new": schema})
        return looked_at(tmp_path)["store"]

    assert become("0001") == (
        "store",
        "warn",
        f"SQLite has schema 0001, this version {newest}",
        "back it up before the next start, which migrates it",
    )
    assert "a newer version of Inflight wrote" in become("9999").what
    store.close()
    (tmp_path / "data" / "store.db").unlink()
    (tmp_path / "data" / "store.db").touch()
    assert "empty" in looked_at(tmp_path)["store"].what


def test_a_public_address_needs_keys(tmp_path: Path) -> None:
    assert "there are no API keys" in looked_at(tmp_path, host="0.0.0.0")["store"].what


def test_an_unreachable_store_is_reported_without_its_password(tmp_path: Path) -> None:
    found = looked_at(tmp_path, 'store_url = "postgresql://ann:hidden@127.0.0.1:1/none"')["store"]
    assert found.verdict == "fail"
    assert "cannot be reached" in found.what
    assert "hidden" not in found.what


def test_the_remaining_time_of_a_certificate_is_read_from_it(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("127.0.0.1")
    issued.private_key_pem.write_to_path(str(tmp_path / "key.pem"))
    for part in issued.cert_chain_pems:
        part.write_to_path(str(tmp_path / "cert.pem"), append=True)
    more = f'tls_cert = "{tmp_path}/cert.pem"\ntls_key = "{tmp_path}/key.pem"\n'
    assert "is valid for" in looked_at(tmp_path, more)["TLS"].what


@pytest.mark.parametrize(
    ("days", "verdict", "words"),
    [
        (90, "ok", "valid for 90 more days"),
        (5, "warn", "expires in 5 days"),
        (-3, "fail", "expired 3 days ago"),
    ],
)
def test_a_certificate_near_its_expiry_is_a_warning(days: int, verdict: str, words: str) -> None:
    found = judge_expiry(days * DAY_S, 0.0)
    assert found.verdict == verdict
    assert words in found.what
