from __future__ import annotations

from pathlib import Path

import pytest

from router.settings import SettingsError, check_reachable, load, parse

GOOD = """
host = "127.0.0.1"
port = 8123
triton_servers = [{ url = "127.0.0.1:9001" }]
data_dir = "here"
drain_timeout_s = 30.0

[[models]]
name = "smollm2-135m-instruct"
pipeline = "ensemble"
engine = "tensorrt_llm"
checkpoint_dir = "somewhere"
"""

A_TRITON = "triton_servers = [{ url = 'x:1' }]"
CASCADE = "[[cascades]]\nname = 'c'\nsmall = 'a'\nlarge = 'b'"


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new)


def test_a_complete_settings_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "router.toml"
    path.write_text(GOOD)
    settings = load(path)
    assert settings.port == 8123
    assert settings.models[0].pipeline == "ensemble"
    assert settings.max_body_bytes == 1 << 20


def test_settings_are_immutable() -> None:
    with pytest.raises(AttributeError):
        parse(GOOD).port = 1  # type: ignore[misc]  # that is the point


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            changed("port = 8123", "prot = 8123"),
            "unknown setting prot: allowed are max_body_bytes, stop_timeout_s, state_dir",
        ),
        (changed("engine =", "engin ="), r"unknown setting models\[0\].engin: allowed are name"),
        (changed("port = 8123", 'port = "x"'), "setting port: Expected `int`, got `str`"),
        (changed("port = 8123", "port = 99999"), "setting port: Expected `int` <= 65535"),
        (changed("drain_timeout_s = 30.0", "drain_timeout_s = -1"), "setting drain_timeout_s: Expected"),
        (changed("127.0.0.1:9001", "http://x"), "triton_servers: url = 'http://x': expected HOST:PORT"),
        (changed("smollm2-135m-instruct", "../etc"), r"setting models\[0\].name: Expected `str` matching"),
        (GOOD.partition("[[models]]")[0], "missing required field `models`"),
        (GOOD + GOOD[GOOD.index("[[models]]") :], "the name 'smollm2-135m-instruct' is given twice"),
        (
            f'{GOOD}\n[[embedders]]\nname = "smollm2-135m-instruct"\ncheckpoint_dir = "/x"\n',
            "the name 'smollm2-135m-instruct' is given twice",
        ),
        (
            f'{GOOD}\n[[embedders]]\nname = "vectors"\ncheckpoint_dir = "/x"\npipeline = "x"\n',
            r"unknown setting embedders\[0\].pipeline: allowed are name, checkpoint_dir, triton_model",
        ),
        ("stop_timeout_s = inf\n" + GOOD, "setting stop_timeout_s: Expected `float` <= 600"),
        ("stop_timeout_s = nan\n" + GOOD, "setting stop_timeout_s: Expected"),
        ("port = = 3", "not valid TOML"),
        ('admission = "random"\n' + GOOD, "setting admission: Invalid enum value 'random'"),
        ("admission_places = -2\n" + GOOD, "setting admission_places: Expected `int` >= -1"),
        (
            f"{GOOD}\n{CASCADE}",
            "cascades: c: no check is set: set at least one of least_log_prob, schema and judge",
        ),
        (
            f"{GOOD}\n{CASCADE}\njudge = 'j'".replace("small = 'a'", "small = 'b'"),
            "small and large are both 'b'",
        ),
        (f"{GOOD}\n{CASCADE}\njudge = 'c'", "'c' is itself a cascade"),
        (f"{GOOD}\n{CASCADE}\nleast_log_prob = 0.5", r"cascades\[0\].least_log_prob: Expected `float` <= 0"),
        (f"{GOOD}\n{CASCADE}\nschema = '{{'", "cascades: c: schema: it is not JSON"),
        (f"{GOOD}\n{CASCADE}\nschema = '{{\"type\": 3}}'", r"cascades: c: schema: \$.type"),
        (f"{GOOD}\n{CASCADE}\njudge = 'j'\njudge_prompt = 'x'", "judge_prompt lacks {answer}"),
        (
            f"{GOOD}\n{CASCADE}\nmiddle = 'j'",
            r"unknown setting cascades\[0\].middle: allowed are name, small",
        ),
        (f"models = 3\n{A_TRITON}", "setting models: Expected `array`, got `int`"),
        (f"models = [3]\n{A_TRITON}", r"setting models\[0\]: Expected `object`, got `int`"),
    ],
)
def test_an_invalid_setting_stops_the_start_naming_key_and_what_is_allowed(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        parse(text)


@pytest.mark.parametrize(
    "origin", ["*", "chat.example.org", "https://chat.example.org/", "HTTPS://A.B", "null"]
)
def test_origins_are_written_as_browsers_send_them(origin: str) -> None:
    with pytest.raises(SettingsError, match=r"setting cors_origins\[0\]"):
        parse(f"cors_origins = ['{origin}']\n{GOOD}")
    assert parse(f"cors_origins = ['https://chat.example.org:8443']\n{GOOD}").cors_origins


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_without_keys_a_router_serves_its_own_machine(host: str) -> None:
    check_reachable(host, has_keys=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.1", "example.org"])
def test_a_public_address_needs_keys(host: str) -> None:
    check_reachable(host, has_keys=True)
    with pytest.raises(SettingsError, match="there are no API keys: create one with `inflight keys create`"):
        check_reachable(host, has_keys=False)


def test_a_missing_settings_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nothing\.toml"):
        load(tmp_path / "nothing.toml")
