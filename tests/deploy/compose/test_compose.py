"""docker-compose.yml holds against the specification, the repository, and what is promised of it."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer.main
import yaml

from deploy.compose_file import (
    EXAMPLE,
    FILE,
    ROOT,
    VARIABLE,
    compose,
    example_environment,
    interpolated,
)
from launcher.stack.processes import LINGER_S
from launcher.stack.router_process import longest_stop_s
from launcher.stack.triton_services import UNLOAD_TIMEOUT_S

SERVICES: dict[str, Any] = compose()["services"]
OURS = {name for name, service in SERVICES.items() if "build" in service}
# What is started once, for one command.
ONE_SHOT = {"release", "release-cpu"}
TRITONS = ["triton", "triton-trtllm", "triton-vllm", "triton-cpu"]
LASTING = sorted(SERVICES.keys() - ONE_SHOT)


def specification() -> dict[str, Any]:
    """The schema of the compose specification, as a package for checking files carries it."""
    spec = importlib.util.find_spec("check_jsonschema")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("check-jsonschema, which carries the compose specification, is not installed")
    package = Path(spec.submodule_search_locations[0])
    text = (package / "builtin_schemas" / "vendor" / "compose-spec.json").read_text()
    schema: dict[str, Any] = json.loads(text)
    return schema


@pytest.mark.parametrize("environment", [{}, example_environment()], ids=["defaults", "example"])
def test_the_compose_file_follows_the_compose_specification(environment: dict[str, str]) -> None:
    jsonschema.validate(compose(environment), specification())


def test_the_specification_would_refuse_a_key_that_does_not_exist() -> None:
    wrong = compose()
    wrong["services"]["router"]["health_check"] = {}
    with pytest.raises(jsonschema.ValidationError, match="health_check"):
        jsonschema.validate(wrong, specification())


def test_every_variable_has_a_default_and_is_explained_in_the_example_and_no_other() -> None:
    used = {found["name"]: found for found in VARIABLE.finditer(FILE.read_text()) if found["name"]}
    assert used.keys() | {"COMPOSE_PROFILES"} == example_environment().keys()
    for name, found in used.items():
        assert found["how"], f"{name} has no default"
        assert found["default"] == example_environment()[name], f"the example of {name} is not its default"


def test_the_example_environment_does_not_pin_versions_that_an_upgrade_changes() -> None:
    set_by_example = {line.split("=")[0] for line in EXAMPLE.read_text().splitlines() if line[:1] != "#"}
    assert not {"INFLIGHT_VERSION", "INFLIGHT_TRITON_BASE"} & set_by_example


def test_no_service_asks_for_more_cores_than_a_small_host_has() -> None:
    """Docker would not start it."""
    cores = {name: float(SERVICES[name]["deploy"]["resources"]["limits"]["cpus"]) for name in LASTING}
    assert max(cores.values()) <= 2
    assert cores["triton"] == cores["triton-cpu"] == 0, "no limit"


def test_a_variable_may_be_empty_where_empty_has_a_meaning() -> None:
    without = compose({"INFLIGHT_EMBEDDINGS": "", "INFLIGHT_MODEL": ""})["services"]["triton"]["command"]
    assert "--embeddings=" in without
    assert "--model=smollm2-135m-instruct" in without
    assert interpolated("$$(cat x)", {}) == "$(cat x)"


def test_the_cpu_profile_needs_no_gpu_and_the_default_is_gpu() -> None:
    assert example_environment()["COMPOSE_PROFILES"] == "gpu"
    always = {name for name, service in SERVICES.items() if not service.get("profiles")}
    assert always == {"router", "redis", "postgres", "prometheus", "grafana"}
    of_cpu = always | {name for name, service in SERVICES.items() if "cpu" in service.get("profiles", ())}
    assert of_cpu == always | {"triton-cpu"}
    assert not [name for name in of_cpu if "reservations" in SERVICES[name]["deploy"]["resources"]]
    for name in always:
        needed = SERVICES[name].get("depends_on", {})
        assert set(needed) <= always, f"{name} depends on what a profile leaves out"
    (gpu,) = SERVICES["triton"]["deploy"]["resources"]["reservations"]["devices"]
    assert gpu == {"driver": "nvidia", "count": "1", "capabilities": ["gpu"]}
    for name in TRITONS[1:]:
        assert SERVICES[name]["networks"]["back"]["aliases"] == ["triton"], "where the router looks for it"


def test_each_profile_of_a_gpu_has_a_base_of_its_own_and_else_the_same() -> None:
    bases = {
        name: SERVICES[name]["build"]["args"]["BASE"] for name in ("triton", "triton-trtllm", "triton-vllm")
    }
    assert "trtllm" not in bases["triton"], "14 GB that would not compute"
    assert "trtllm" in bases["triton-trtllm"]
    assert "vllm" in bases["triton-vllm"]
    assert [SERVICES[name]["profiles"] for name in TRITONS] == [["gpu"], ["trtllm"], ["vllm"], ["cpu"]]
    for name in ("triton-trtllm", "triton-vllm"):
        for key in ("command", "deploy", "environment", "healthcheck", "volumes"):
            assert SERVICES[name][key] == SERVICES["triton"][key]
        assert SERVICES[name]["environment"]["TRTLLM_NO_USAGE_STATS"] == "1"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_a_container_has_no_more_rights_than_it_needs(name: str) -> None:
    service = SERVICES[name]
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert re.fullmatch(r"\d+:\d+", service["user"]), "a number, by which it can be told from root"
    assert not service["user"].startswith("0:")
    assert service["pids_limit"] > 0
    assert {"max-size", "max-file"} <= service["logging"]["options"].keys()
    assert service["stop_grace_period"]
    assert not {"privileged", "network_mode", "pid", "ipc"} & service.keys()


@pytest.mark.parametrize("name", LASTING)
def test_a_service_has_a_health_check_limits_and_a_restart_policy(name: str) -> None:
    service = SERVICES[name]
    assert {"test", "interval", "timeout", "retries", "start_period"} <= service["healthcheck"].keys()
    assert {"memory", "cpus"} == service["deploy"]["resources"]["limits"].keys()
    assert service["restart"] == "unless-stopped"


def test_ports_are_open_on_this_machine_alone_and_triton_has_none() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published.keys() == {"router", "prometheus", "grafana", "locust"}
    for ports in published.values():
        assert all(port.startswith("127.0.0.1:") for port in ports)
    assert compose()["networks"]["back"] == {"internal": True}
    for name in ("postgres", "redis"):
        assert SERVICES[name]["networks"] == ["back"]


def test_pulled_images_have_an_exact_version() -> None:
    for name in SERVICES.keys() - OURS:
        assert re.search(r":v?\d+\.\d+(\.\d+)?(-\w+)?(@sha256:\w{64})?$", SERVICES[name]["image"]), name
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    for name in OURS:
        assert SERVICES[name]["image"].endswith(f":{version[1]}")


def test_every_mounted_path_and_volume_exists() -> None:
    volumes = set(compose()["volumes"])
    used = set()
    for service in SERVICES.values():
        for mount in service.get("volumes", ()):
            source = mount.split(":")[0]
            if source.startswith("."):
                assert (ROOT / source).exists(), mount
                assert mount.endswith(":ro,z"), "for hosts with SELinux"
            else:
                used.add(source)
    assert used == volumes


def test_every_build_target_and_argument_exists_in_its_dockerfile() -> None:
    for name in OURS:
        build = SERVICES[name]["build"]
        dockerfile = (ROOT / build["dockerfile"]).read_text()
        assert build["context"] == "."
        if target := build.get("target"):
            assert f" AS {target}\n" in dockerfile
        for argument in build.get("args", {}):
            assert f"ARG {argument}=" in dockerfile


def test_secrets_are_passed_by_file_and_only_to_services_that_need_them() -> None:
    secrets = compose()["secrets"]
    used = {secret for service in SERVICES.values() for secret in service.get("secrets", ())}
    assert used == secrets.keys()
    for name, service in SERVICES.items():
        text = yaml.safe_dump({key: value for key, value in service.items() if key != "secrets"})
        named = set(re.findall(r"/run/secrets/(\w+)", text)) - {"redis_acl"}
        assert named <= set(service.get("secrets", ())), name
        for variable in service.get("environment", {}):
            is_secret = re.search(r"PASSWORD|SECRET|KEY|TOKEN", variable)
            assert not is_secret or variable.endswith(("_FILE", "_PATH")), f"{name} has {variable}"
    for triton in TRITONS:
        found = set(SERVICES[triton]["secrets"])
        assert found == {"triton_secret", "hf_token", "aws_credentials"}, "no way to the store"


def test_secrets_named_in_files_are_given_to_their_containers() -> None:
    def named(file: str) -> set[str]:
        return set(re.findall(r"/run/secrets/(\w+)", (ROOT / file).read_text()))

    assert named("deploy/compose/redis.conf") <= set(SERVICES["redis"]["secrets"])
    assert named("deploy/prometheus/prometheus.yml") <= set(SERVICES["prometheus"]["secrets"])
    datasources = "deploy/grafana/provisioning/datasources/inflight.yml"
    assert named(datasources) <= set(SERVICES["grafana"]["secrets"])
    for service in ("router", "release", "release-cpu"):
        assert named("deploy/compose/inflight.toml") <= set(SERVICES[service]["secrets"])


@pytest.mark.parametrize("name", [*TRITONS, "router"])
def test_commands_have_options_that_exist(name: str) -> None:
    from launcher.commands.main import app

    commands: Any = typer.main.get_command(app)
    program, command, *words = SERVICES[name]["command"]
    assert program == "inflight"
    known = {option for parameter in commands.commands[command].params for option in parameter.opts}
    assert {word.split("=")[0] for word in words} <= known


def test_the_shell_commands_can_be_read_by_a_shell() -> None:
    lines = [SERVICES["locust"]["command"][2], SERVICES["redis"]["healthcheck"]["test"][1]]
    for line in lines:
        read = subprocess.run(["sh", "-n", "-c", line], capture_output=True, text=True, check=False)
        assert read.returncode == 0, read.stderr


def test_prometheus_and_grafana_are_at_the_addresses_their_files_expect() -> None:
    targets = re.findall(r'"([\w.-]+):(\d+)"', (ROOT / "deploy/prometheus/prometheus.yml").read_text())
    names = set(SERVICES) | {"127.0.0.1", "alertmanager"}
    assert {host for host, _ in targets} <= names
    provider = yaml.safe_load((ROOT / "deploy/grafana/provisioning/dashboards/inflight.yml").read_text())
    path = provider["providers"][0]["options"]["path"]
    assert f"./deploy/grafana/dashboards:{path}:ro,z" in SERVICES["grafana"]["volumes"]


def test_the_example_says_what_each_variable_is_for() -> None:
    blocks = EXAMPLE.read_text().strip().split("\n\n")[1:]
    assert all(block.startswith("# ") for block in blocks)


def test_both_tritons_are_started_alike_except_for_the_images_home() -> None:
    assert SERVICES["triton"]["command"] == [
        *SERVICES["triton-cpu"]["command"],
        "--servers=all",
        "--triton-home=/opt/tritonserver",
    ]
    assert SERVICES["triton"]["healthcheck"] == SERVICES["triton-cpu"]["healthcheck"]


def test_containers_have_the_time_that_a_clean_shutdown_may_take() -> None:
    def grace_s(name: str) -> int:
        return int(SERVICES[name]["stop_grace_period"].removesuffix("s"))

    drain = next(word for word in SERVICES["router"]["command"] if word.startswith("--drain-timeout-s="))
    assert grace_s("router") > longest_stop_s(float(drain.split("=")[1]), {})
    assert grace_s("triton") > UNLOAD_TIMEOUT_S + 2 * LINGER_S
