"""What Triton and the routers of a deployment share."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.commands.deployment.shared_state import MADE_SECRET, deployment_settings, triton_secret
from launcher.settings import SettingsError, state_dir


def test_the_state_directory_comes_from_the_flag_the_file_or_the_data_directory(tmp_path: Path) -> None:
    config = tmp_path / "inflight.toml"
    config.write_text(f'[stack]\ndata_dir = "{tmp_path}/data"\n')
    assert state_dir(deployment_settings(config, {}, None)) == tmp_path / "data"
    config.write_text(f'[router]\nstate_dir = "{tmp_path}/state"\n')
    assert state_dir(deployment_settings(config, {}, None)) == tmp_path / "state"
    assert state_dir(deployment_settings(config, {}, tmp_path / "other")) == tmp_path / "other"


def test_without_a_file_the_secret_is_created_once_and_shared(tmp_path: Path) -> None:
    settings = deployment_settings(None, {}, tmp_path / "state")
    secret = triton_secret(None, settings)
    assert triton_secret(None, settings) == secret
    assert len(secret) == 32
    assert (tmp_path / "state" / MADE_SECRET).stat().st_mode & 0o777 == 0o600


def test_a_given_secret_is_used(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("a-secret_of_16chars\n")
    settings = deployment_settings(None, {}, tmp_path)
    assert triton_secret(tmp_path / "secret", settings) == "a-secret_of_16chars"
    assert not (tmp_path / MADE_SECRET).exists()


@pytest.mark.parametrize("secret", ["short", "with spaces in it all", "with,commas,and:colons=", "x" * 257])
def test_a_secret_that_tritons_option_would_misread_is_refused_without_being_shown(
    secret: str, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text(secret)
    with pytest.raises(SettingsError, match="must hold 16 to 256 of A-Z, a-z, 0-9, '-' and '_'") as refused:
        triton_secret(tmp_path / "file", deployment_settings(None, {}, tmp_path))
    assert secret not in str(refused.value)
