"""Secrets that are told by file."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.secret_files import read_secret, with_secrets
from launcher.settings import SettingsError, load_settings


def test_a_secret_replaces_the_file_that_holds_it(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("postgresql://u:p@h/n\n")
    router = {"store_url_file": str(tmp_path / "url"), "max_body_bytes": 2048, "redis_url_file": ""}
    assert with_secrets(router) == {"store_url": "postgresql://u:p@h/n", "max_body_bytes": 2048}


def test_without_secret_files_nothing_changes_and_none_is_read_early(tmp_path: Path) -> None:
    assert with_secrets({"store_url": "sqlite:///x"}) == {"store_url": "sqlite:///x"}
    config = tmp_path / "inflight.toml"
    config.write_text('[router]\nstore_url_file = "not-there"\n')
    settings = load_settings(config, {})
    assert settings.router["store_url_file"] == str(Path("not-there").absolute())
    with pytest.raises(
        SettingsError, match=r"router\.store_url_file: .*not-there cannot be read: No such file"
    ):
        with_secrets(settings.router)


def test_a_setting_given_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "url").write_text("redis://h")
    with pytest.raises(SettingsError, match=r"router\.redis_url and router\.redis_url_file are both given"):
        with_secrets({"redis_url": "redis://other", "redis_url_file": str(tmp_path / "url")})


@pytest.mark.parametrize("content", [b"", b" \n", b"one\ntwo\n", b"\xff\xfe"])
def test_a_secret_that_is_not_one_line_is_refused_without_being_shown(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(content)
    with pytest.raises(SettingsError, match=r"--secret-file: .*secret") as refused:
        read_secret(tmp_path / "secret", "--secret-file")
    assert "two" not in str(refused.value)
