"""What the launcher knows of the router: who judges its settings, and how long it may take to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.router_process import CLOSING_S, DEFAULT_STOP_TIMEOUT_S, check_router_settings, longest_stop_s
from launcher.settings import ROUTER_KEYS_OF_OURS, SettingsError
from router.settings import Settings, Tuning


def test_good_settings_of_the_router_pass(tmp_path: Path) -> None:
    check_router_settings({"max_body_bytes": 2048, "stop_timeout_s": 2}, tmp_path / "router.toml")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"max_body_byte": 2048},
            r"^\[router\] unknown setting max_body_byte: allowed are max_body_bytes, stop_timeout_s$",
        ),
        ({"max_body_bytes": 1}, r"^\[router\] setting max_body_bytes: Expected `int` >= 1024$"),
    ],
)
def test_bad_ones_are_refused_in_the_words_of_the_router(
    settings: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=message):
        check_router_settings(settings, tmp_path / "router.toml")


def test_another_router_in_the_working_directory_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "__init__.py").write_text("raise ImportError('not ours')")
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="max_body_bytes"):
        check_router_settings({"max_body_bytes": 1}, tmp_path / "run" / "router.toml")


def test_a_setting_is_either_the_launchers_or_the_users() -> None:
    assert set(Settings.__struct_fields__) - ROUTER_KEYS_OF_OURS == set(Tuning.__struct_fields__)


def test_a_proper_end_of_the_router_is_never_cut() -> None:
    assert Tuning().stop_timeout_s == DEFAULT_STOP_TIMEOUT_S
    assert longest_stop_s(30, {}) == 30 + 4 * DEFAULT_STOP_TIMEOUT_S + CLOSING_S
    assert longest_stop_s(30, {"stop_timeout_s": 60}) == 30 + 4 * 60 + CLOSING_S
