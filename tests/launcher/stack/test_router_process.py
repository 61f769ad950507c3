"""What the launcher knows of the router: who judges its settings, and how long it may take to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.packaging.models.checkpoint import Checkpoint
from launcher.packaging.models.fingerprint import Fingerprint
from launcher.packaging.triton_runtime import TritonRuntime
from launcher.settings import ROUTER_KEYS_OF_OURS, SettingsError, load_settings, router_settings
from launcher.stack.router_process import (
    CLOSING_S,
    DEFAULT_STOP_TIMEOUT_S,
    RESTART_S,
    BuiltIn,
    RouterProcess,
    add_command,
    check_router_settings,
    longest_stop_s,
    revive_wait_s,
)
from launcher.stack.triton_door import SocketDoor, tls_door
from launcher.stack.triton_server import TritonServer
from router.settings import EmbedderSettings, ModelSettings, Options, Settings, TritonSettings, load


def checkpoint(name: str) -> Checkpoint:
    return Checkpoint(name, Path(f"/{name}"), Path(f"/{name}"))


def check(settings: dict[str, int], directory: Path, host: str = "127.0.0.1") -> None:
    check_router_settings(host, directory / "data", settings, directory / "router.toml")


def test_a_public_address_is_refused_while_there_are_no_keys(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="there are no API keys: create one with `inflight keys create`"):
        check({}, tmp_path, "0.0.0.0")


def test_valid_router_settings_pass(tmp_path: Path) -> None:
    check({"max_body_bytes": 2048, "stop_timeout_s": 2}, tmp_path)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"max_body_byte": 2048},
            r"^\[router\] unknown setting max_body_byte: allowed are max_body_bytes, stop_timeout_s, ",
        ),
        ({"max_body_bytes": 1}, r"^\[router\] setting max_body_bytes: Expected `int` >= 1024$"),
    ],
)
def test_invalid_router_settings_are_refused_in_the_routers_words(
    settings: dict[str, int], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SettingsError, match=message):
        check(settings, tmp_path)


def test_a_router_package_in_the_working_directory_does_not_shadow_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "router").mkdir()
    (tmp_path / "router" / "__init__.py").write_text("raise ImportError('not ours')")
    (tmp_path / "run").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match="max_body_bytes"):
        check({"max_body_bytes": 1}, tmp_path / "run")


def test_a_setting_is_either_the_launchers_or_the_users() -> None:
    assert set(Settings.__struct_fields__) - ROUTER_KEYS_OF_OURS == set(Options.__struct_fields__)


def test_the_router_can_read_the_settings_written_for_it(tmp_path: Path) -> None:
    text = BuiltIn(checkpoint("text"), Fingerprint("aa", "bb", 7), {"inflight_device": "cpu"})
    vectors = BuiltIn(checkpoint("vectors"), Fingerprint("cc", "dd", 7))
    runtime = TritonRuntime(Path(), Path(), Path())
    doors = (SocketDoor(tmp_path / "triton", 1), tls_door("10.0.0.7", 8001, "a secret", tmp_path / "tls"))
    tritons = [TritonServer(runtime, (), "", door, 8002) for door in doors]
    router = RouterProcess("127.0.0.1", 8080, tmp_path / "router.toml", tmp_path)
    router.write_settings(tritons, text, 30, {"max_body_bytes": 2048})
    assert load(router.settings_path).embedders == ()
    router.write_settings(tritons, text, 30, {}, vectors)
    settings = load(router.settings_path)
    assert settings.triton_servers == (
        TritonSettings(f"unix:{tmp_path}/triton:1"),
        TritonSettings(
            "10.0.0.7:8001",
            tls_ca=f"{tmp_path}/tls/authority.pem",
            tls_cert=f"{tmp_path}/tls/client.pem",
            tls_key=f"{tmp_path}/tls/client.key",
            tls_name="inflight-triton",
        ),
    )
    assert settings.models == (
        ModelSettings(
            "text", "/text", weights_sha256="aa", tokenizer_sha256="bb", parameters={"inflight_device": "cpu"}
        ),
    )
    assert settings.embedders == (EmbedderSettings("vectors", "/vectors", "embeddings", "cc", "dd"),)


def test_only_the_owner_can_read_the_secrets_in_the_routers_settings(tmp_path: Path) -> None:
    router = RouterProcess("127.0.0.1", 8080, tmp_path / "router.toml", tmp_path)
    router.settings_path.write_text("what was checked before")
    router.settings_path.chmod(0o644)
    router.write_settings([], BuiltIn(checkpoint("text"), Fingerprint("", "", 0)), 30, {})
    assert router.settings_path.stat().st_mode & 0o777 == 0o600


def test_a_clean_shutdown_of_the_router_is_never_cut_short() -> None:
    assert Options().stop_timeout_s == DEFAULT_STOP_TIMEOUT_S
    assert longest_stop_s(30, {}) == 30 + 4 * DEFAULT_STOP_TIMEOUT_S + CLOSING_S
    assert longest_stop_s(30, {"stop_timeout_s": 60}) == 30 + 4 * 60 + CLOSING_S


@pytest.mark.parametrize(
    ("weights_bytes", "wanted_s"),
    [(0, 60), (145 * 10**6, 60.725), (16 * 10**9, 140), (140 * 10**9, 600)],
    ids=["unknown", "135 million", "8 billion", "70 billion"],
)
def test_requests_wait_longer_for_a_triton_with_larger_weights(weights_bytes: int, wanted_s: float) -> None:
    assert Options().revive_wait_s == RESTART_S
    assert revive_wait_s(weights_bytes) == pytest.approx(wanted_s)


def test_how_long_requests_wait_for_triton_is_the_operators_to_say(tmp_path: Path) -> None:
    router = RouterProcess("127.0.0.1", 8080, tmp_path / "router.toml", tmp_path)
    text = BuiltIn(checkpoint("text"), Fingerprint("", "", 2 * 10**9))
    vectors = BuiltIn(checkpoint("vectors"), Fingerprint("", "", 10**9))
    door = SocketDoor(tmp_path / "triton", 1)
    tritons = [TritonServer(TritonRuntime(Path(), Path(), Path()), (), "", door, 8002)]
    router.write_settings(tritons, text, 30, {}, vectors)
    assert load(router.settings_path).revive_wait_s == 75
    router.write_settings(tritons, text, 30, {"revive_wait_s": 5}, vectors)
    assert load(router.settings_path).revive_wait_s == 5


def test_the_grpc_port_is_passed_to_the_router_and_may_be_off(tmp_path: Path) -> None:
    off = RouterProcess("127.0.0.1", 8080, tmp_path / "router.toml", tmp_path)
    assert off.grpc_url is None
    on = RouterProcess("::1", 8080, tmp_path / "router.toml", tmp_path, grpc_port=8081)
    assert on.grpc_url == "[::1]:8081"


def test_the_router_may_add_releases_with_the_options_of_this_installation(tmp_path: Path) -> None:
    file = tmp_path / "inflight.toml"
    file.write_text('[router]\nrelease_sources = ["~/models", "here"]\n')
    settings = load_settings(file, {"data_dir": tmp_path})
    assert add_command(settings)[1:] == [
        "-m", "launcher", "release", "add", f"--data-dir={tmp_path}", f"--config={file}",
    ]  # fmt: skip
    assert settings.router["release_sources"] == [str(Path.home() / "models"), str(Path.cwd() / "here")]
    with pytest.raises(SettingsError, match=r"router.release_command is set by the launcher itself"):
        router_settings({"release_command": ["sh"]})
