"""Services of docker-compose.yml as podman is told them: nothing of the file is lost on the way."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deploy.compose_file import compose
from deploy.images.exercise import ORDER
from deploy.images.podman import Project, seconds

FOLDER = Path("/srv/checkout")
PROJECT = Project("inflight", FOLDER, compose())
SERVICES: dict[str, Any] = PROJECT.compose["services"]


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_every_key_of_every_service_is_known(name: str) -> None:
    PROJECT.run_words(name, detached=SERVICES[name]["restart"] != "no")


def test_a_key_that_nobody_translates_is_refused() -> None:
    strange = {**SERVICES["redis"], "privileged": True}
    with pytest.raises(SystemExit, match="redis has privileged, which cannot be translated"):
        Project("x", FOLDER, {**PROJECT.compose, "services": {"redis": strange}}).run_words("redis")


@pytest.mark.parametrize("name", ORDER)
def test_a_container_has_the_rights_of_the_file_and_no_more(name: str) -> None:
    words = PROJECT.run_words(name)
    assert {f"--user={SERVICES[name]['user']}", "--read-only", "--read-only-tmpfs=false"} <= set(words)
    assert {"--cap-drop=ALL", "--security-opt=no-new-privileges", "--init"} <= set(words)
    assert f"--pids-limit={SERVICES[name]['pids_limit']}" in words


@pytest.mark.parametrize("name", ORDER)
def test_the_command_and_the_health_check_are_the_files(name: str) -> None:
    words = PROJECT.run_words(name)
    image = words.index(PROJECT.image(name))
    assert words[image + 1 :] == SERVICES[name].get("command", [])
    kind, *check = SERVICES[name]["healthcheck"]["test"]
    shell = ["sh", "-c"] if kind == "CMD-SHELL" else []
    assert PROJECT.health(name).words == [*shell, *check]


def test_a_container_has_as_long_to_be_healthy_as_docker_gives_it() -> None:
    triton, redis = PROJECT.health("triton-cpu"), PROJECT.health("redis")
    assert (triton.every_s, triton.patience_s) == (2, 3600 + 3 * 10)
    assert (redis.every_s, redis.patience_s) == (1, 10 + 5 * 5)


def test_the_router_finds_triton_by_the_name_in_its_command() -> None:
    assert "--triton=triton:8001" in PROJECT.run_words("router")
    assert "--network=inflight_back:alias=triton-cpu,alias=triton" in PROJECT.run_words("triton-cpu")
    assert "--network=inflight_back:alias=router" in PROJECT.run_words("router")


def test_mounts_are_files_of_the_checkout_secrets_and_named_volumes() -> None:
    words = PROJECT.run_words("router")
    settings = "/srv/checkout/deploy/compose/inflight.toml:/etc/inflight/inflight.toml:ro,z"
    assert {
        f"--volume={settings}",
        "--volume=inflight_state:/state",
        "--volume=inflight_models:/data:ro",
    } <= set(words)
    assert "--volume=/srv/checkout/deploy/compose/secrets/pepper:/run/secrets/pepper:ro" in words
    assert not [word for word in words if "postgres_password" in word], "only what the service names"
    assert "--tmpfs=/tmp:mode=1777,size=256m" in words


def test_a_service_that_is_started_once_gets_the_command_of_the_caller() -> None:
    words = PROJECT.run_words("release-cpu", ("add", "tiny", "/models/tiny"), detached=False)
    assert words[0] == "--rm"
    assert '--entrypoint=["inflight", "release"]' in words
    assert words[-4:] == ["localhost/" + SERVICES["release-cpu"]["image"], "add", "tiny", "/models/tiny"]


@pytest.mark.parametrize(("text", "wanted"), [("90s", 90), ("5m", 300), ("1h", 3600), ("1h2m3s", 3723)])
def test_durations_are_seconds(text: str, wanted: int) -> None:
    assert seconds(text) == wanted


@pytest.mark.parametrize("text", ["", "soon", "90", "10ms"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        seconds(text)
