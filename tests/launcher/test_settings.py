"""What `inflight up` accepts as settings, and how it refuses the rest."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.settings import (
    Settings,
    SettingsError,
    StackSettings,
    default_data_dir,
    load_settings,
    packed_cache_dir,
    state_dir,
)


def load(text: str, tmp_path: Path, **flags: object) -> Settings:
    file = tmp_path / "inflight.toml"
    file.write_text(text)
    return load_settings(file, flags)


def test_without_file_or_flags_the_defaults_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = load_settings(None, {"port": None})
    assert settings.stack == StackSettings()
    assert settings.stack.port == 8080
    assert settings.stack.model == "smollm2-135m-instruct"


def test_a_file_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "inflight.toml").write_text("[stack]\nport = 9001\n")
    monkeypatch.chdir(tmp_path)
    assert load_settings(None, {}).stack.port == 9001


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path: Path) -> None:
    settings = load("[stack]\nport = 9001\nmodel = 'there'\ndrain_timeout_s = 5\n", tmp_path, port=9002)
    assert (settings.stack.port, settings.stack.model, settings.stack.drain_timeout_s) == (9002, "there", 5.0)


def test_embeddings_can_be_turned_off_and_a_choice_differs_from_the_default(tmp_path: Path) -> None:
    assert load("", tmp_path).chosen == set()
    settings = load("[stack]\nport = 9001\n", tmp_path, embeddings="")
    assert (settings.stack.embeddings, settings.chosen) == ("", frozenset({"port", "embeddings"}))
    settings = load("[stack]\nembeddings = 'all-minilm-l6-v2'\n", tmp_path, embeddings=None)
    assert settings.stack == StackSettings()
    assert settings.chosen == {"embeddings"}


def test_the_data_directory_follows_xdg_data_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "/somewhere")
    assert default_data_dir() == Path("/somewhere/inflight")
    monkeypatch.setenv("XDG_DATA_HOME", "here")
    assert default_data_dir() == Path.cwd() / "here" / "inflight", "what is started runs elsewhere"
    monkeypatch.setenv("XDG_DATA_HOME", "")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_data_dir() == Path("/home/me/.local/share/inflight")


def test_engine_values_become_the_strings_of_config_pbtxt(tmp_path: Path) -> None:
    text = "max_tokens_in_paged_kv_cache = 4096\nexclude_input_in_output = true\ngpt_model_type = 'V1'\n"
    assert load(f"[engine]\n{text}", tmp_path).engine == {
        "max_tokens_in_paged_kv_cache": "4096",
        "exclude_input_in_output": "true",
        "gpt_model_type": "V1",
    }


def test_embeddings_have_a_section_of_their_own(tmp_path: Path) -> None:
    text = "[engine]\ninflight_precision = 'int4'\n[embeddings]\ninflight_precision = 'int8'\nthreads = 2\n"
    settings = load(text, tmp_path)
    assert settings.embeddings == {"inflight_precision": "int8", "threads": "2"}
    assert settings.engine == {"inflight_precision": "int4"}


def test_router_values_pass_through(tmp_path: Path) -> None:
    assert load("[router]\nmax_body_bytes = 2048\n", tmp_path).router == {"max_body_bytes": 2048}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[stacks]\n", "unknown section [stacks]; allowed: stack, router, engine, embeddings"),
        ("stack = 3\n", "it must be a section"),
        ("[stack]\nprot = 1\n", "unknown key stack.prot; allowed: host, port, data_dir"),
        ("[stack]\nport = '8080'\n", "stack.port is '8080'; allowed: a whole number"),
        ("[stack]\nport = true\n", "stack.port is True; allowed: a whole number"),
        ("[stack]\nport = 65536\n", "stack.port is 65536; allowed: 1 to 65535"),
        ("[stack]\ntriton_grpc_port = -1\n", "stack.triton_grpc_port is -1; allowed"),
        ("[stack]\nport = 9000\ntriton_grpc_port = 9000\n", "must differ"),
        ("[stack]\ntriton_servers = 0\n", "stack.triton_servers is 0; allowed: 1 to 16, or all"),
        ("[stack]\ntriton_servers = 'many'\n", "stack.triton_servers is 'many'; allowed: 1 to 16, or all"),
        ("[stack]\nprefill_servers = 1\n", "stack.prefill_servers is 1; allowed: 0 to 0, fewer than"),
        ("[stack]\ntriton_servers = 3\nprefill_servers = 3\n", "allowed: 0 to 2"),
        ("[stack]\ngrpc_port = -2\n", "stack.grpc_port is -2; allowed"),
        ("[stack]\nport = 8081\n", "must differ"),
        ("[stack]\nmodel = ''\n", "stack.model is ''; allowed: a text"),
        ("[stack]\nembeddings = false\n", "stack.embeddings is False; allowed: a text"),
        ("[stack]\ndata_dir = 7\n", "stack.data_dir is 7; allowed: the path of a directory"),
        ("[stack]\ndrain_timeout_s = -1\n", "stack.drain_timeout_s is -1.0; allowed: 0 to 3600 seconds"),
        ("[stack]\ndrain_timeout_s = nan\n", "stack.drain_timeout_s is nan; allowed"),
        ("[router]\nport = 1\n", "router.port is set by the launcher itself"),
        ("[engine]\ninflight_pool = 'decode'\n", "launcher itself, from INFLIGHT_POOL in the environment"),
        ("[engine]\ngpt_model_path = 'x'\n", "engine.gpt_model_path is set by the launcher itself"),
        ("[engine]\nbatch_scheduler_policy = 'fifo'\n", "batch_scheduler_policy is 'fifo'; allowed"),
        ("[engine]\nspeed = 9\n", "unknown parameter speed"),
        (
            "[engine]\ninflight_max_step_tokens = 8\ninflight_max_batch_size = 64\n",
            "inflight_max_step_tokens is '8'; allowed: inflight_max_batch_size (64) or more",
        ),
        ("[engine]\nmax_beam_width = [1]\n", "engine.max_beam_width is [1]; allowed"),
        ("[embeddings]\ninflight_threads = 2\n", "unknown key embeddings.inflight_threads; allowed: threads"),
        ("[embeddings]\nthreads = [1]\n", "embeddings.threads is [1]; allowed: a text, a number"),
        ("[embeddings]\ninflight_precision = 'int4'\n", "inflight_precision is 'int4'; allowed: auto, fp32"),
        (
            "[embeddings]\ninflight_precision = 'int8'\ndevice = 'cuda'\n",
            "inflight_precision is 'int8'; allowed: auto, bf16 (device is cuda",
        ),
        ("[stack\n", "is not valid TOML"),
    ],
)
def test_an_invalid_setting_is_refused_by_name(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as refusal:
        load(text, tmp_path)
    assert message in str(refusal.value)


def test_a_named_settings_file_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"nowhere\.toml cannot be read: No such file"):
        load_settings(tmp_path / "nowhere.toml", {})


def test_packed_weights_are_kept_with_the_models_unless_the_user_says_where() -> None:
    stack = StackSettings(data_dir=Path("/data"))
    assert packed_cache_dir(Settings(stack)) == "/data/packed"
    assert packed_cache_dir(Settings(stack, engine={"inflight_packed_cache_dir": "/fast"})) == "/fast"


def test_state_and_releases_are_kept_with_the_models_unless_the_user_says_where() -> None:
    stack = StackSettings(data_dir=Path("/data"))
    assert state_dir(Settings(stack)) == Path("/data")
    assert state_dir(Settings(stack, router={"state_dir": "/state"})) == Path("/state")


@pytest.mark.parametrize(("given", "meant"), [("packed", "here/packed"), ("~/packed", "home/packed")])
def test_packed_weights_have_an_absolute_path_because_triton_runs_elsewhere(
    given: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    settings = Settings(engine={"inflight_packed_cache_dir": given})
    assert packed_cache_dir(settings) == str(tmp_path / meant)


def test_a_file_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "inflight.toml").write_bytes("[stack]\nmodel = 'é'\n".encode("latin-1"))
    with pytest.raises(SettingsError, match=r"inflight\.toml is not UTF-8"):
        load_settings(tmp_path / "inflight.toml", {})
