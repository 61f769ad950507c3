"""deploy/kubernetes: every overlay builds, is what the API takes, and keeps to rules of our own."""

from __future__ import annotations

import os
import re
import tempfile
from functools import cache
from pathlib import Path

import pytest
import yaml

from deploy.compose_file import ROOT
from deploy.compose_file import compose as read_compose
from launcher.stack.router_process import longest_stop_s
from launcher.stack.triton_services import UNLOAD_TIMEOUT_S
from tests.deploy.kubernetes.chart import CHART, OPTIONAL, Object, comparable, objects_of, rendered
from tests.kubernetes_programs import run_once

OVERLAYS = sorted(path.name for path in (CHART / "overlays").iterdir())
NAMESPACE = "inflight"
# Of others' operators: their schemas are not among Kubernetes's own.
CUSTOM = {"ServiceMonitor", "ScaledObject", "HTTPRoute", "InferencePool"}
NEWEST_API = "1.34"


@cache
def built() -> dict[str, tuple[Object, ...]]:
    """By namespace: everything where all of it belongs, and every overlay in one of its own.

    By one kubectl, which takes longer to start than to build: by qemu, several seconds.
    """
    with tempfile.TemporaryDirectory(prefix="inflight-overlays-") as folder:
        place = Path(folder)
        chart = place / "chart"  # the same name, wherever the checkout is
        chart.symlink_to(CHART)
        write_kustomization(place, resources=[place / name for name in (NAMESPACE, *OVERLAYS)])
        write_kustomization(
            place / NAMESPACE,
            resources=[chart / "overlays" / "split"],
            components=[chart / "components" / name for name in OPTIONAL],
        )
        for name in OVERLAYS:
            own = [chart / "overlays" / name]
            write_kustomization(place / name, resources=own, namespace=name)
        done = run_once("kubectl", "kustomize", folder, reads=[CHART, place])
    assert done.returncode == 0, done.stderr
    found: dict[str, list[Object]] = {}
    for each in objects_of(done.stdout):
        found.setdefault(each["metadata"].get("namespace", "none"), []).append(each)
    return {name: tuple(objects) for name, objects in found.items()}


def write_kustomization(place: Path, namespace: str | None = None, **parts: list[Path]) -> None:
    """As somebody's own overlay would be."""
    place.mkdir(exist_ok=True)
    whole: dict[str, object] = {
        name: [os.path.relpath(each, place) for each in paths] for name, paths in parts.items()
    }
    if namespace is not None:
        whole["namespace"] = namespace
    (place / "kustomization.yaml").write_text(yaml.safe_dump(whole))


def overlay(name: str) -> tuple[Object, ...]:
    return built()[name]


@pytest.fixture(scope="module")
def everything() -> tuple[Object, ...]:
    """Several nodes and every component, as somebody's own overlay would have them."""
    return built()[NAMESPACE]


def of_kind(objects: tuple[Object, ...], *kinds: str) -> list[Object]:
    return [each for each in objects if each["kind"] in kinds]


def workloads(objects: tuple[Object, ...]) -> list[Object]:
    return of_kind(objects, "Deployment", "StatefulSet")


def pods(objects: tuple[Object, ...]) -> list[Object]:
    return [each["spec"]["template"]["spec"] for each in workloads(objects)]


def named(objects: tuple[Object, ...], kind: str, name: str) -> Object:
    (found,) = (each for each in of_kind(objects, kind) if each["metadata"]["name"] == name)
    return found


def test_every_object_is_what_the_api_takes(everything: tuple[Object, ...]) -> None:
    """Of several nodes with all components, and what the smallest overlay has of its own."""
    validate = pytest.importorskip("kubernetes_validate").validate
    kinds = {each["kind"] for each in everything}
    assert kinds >= {*CUSTOM, "HorizontalPodAutoscaler", "Ingress", "PodDisruptionBudget"}
    for each in (*everything, *workloads(overlay("cpu"))):
        if each["kind"] not in CUSTOM:
            validate(each, NEWEST_API, strict=True)


def test_the_api_would_refuse_a_field_that_does_not_exist() -> None:
    package = pytest.importorskip("kubernetes_validate")
    wrong = {**overlay("cpu")[0], "spce": {}}
    with pytest.raises(package.ValidationError):
        package.validate(wrong, NEWEST_API, strict=True)


def test_every_object_is_in_the_namespace_of_the_pods_it_is_about() -> None:
    assert built().keys() == {NAMESPACE, *OVERLAYS}


# Several nodes come with every component, below.
@pytest.mark.parametrize("name", [each for each in OVERLAYS if each != "split"])
def test_the_chart_with_an_overlays_values_gives_the_overlays_objects(name: str) -> None:
    objects = rendered(CHART / "overlays" / name / "values.yaml", namespace=name)
    assert comparable(objects) == comparable(overlay(name))


def test_the_chart_with_every_component_gives_what_kustomize_does(
    everything: tuple[Object, ...], tmp_path: Path
) -> None:
    chosen = tmp_path / "values.yaml"
    chosen.write_text(yaml.safe_dump({"components": OPTIONAL}))
    assert comparable(rendered(CHART / "overlays/split/values.yaml", chosen)) == comparable(everything)


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_have_no_more_rights_than_they_need(name: str) -> None:
    for pod in pods(overlay(name)):
        assert pod["automountServiceAccountToken"] is False
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] == 10001, "the user of the images"
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
        assert not any("hostPath" in volume for volume in pod["volumes"])
        for container in pod["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
            assert "memory" in container["resources"]["limits"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_images_have_the_version_of_the_project(name: str) -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    images = {container["image"] for pod in pods(overlay(name)) for container in pod["containers"]}
    triton = "inflight-triton-cpu" if name == "cpu" else "inflight-triton"
    assert images == {f"inflight-router:{version[1]}", f"{triton}:{version[1]}"}


@pytest.mark.parametrize("name", OVERLAYS)
def test_no_secret_is_part_of_an_overlay_and_each_that_is_read_is_a_file(name: str) -> None:
    objects = overlay(name)
    assert not of_kind(objects, "Secret")
    for pod in pods(objects):
        for container in pod["containers"]:
            assert not any("secretKeyRef" in each.get("valueFrom", {}) for each in container["env"])
            files = [word.partition("=")[2] for word in container["args"] if "-file=" in word]
            assert files
            assert all(file.startswith("/run/inflight/") for file in files)


@pytest.mark.parametrize("name", OVERLAYS)
def test_every_pod_is_behind_a_network_policy_and_triton_is_reached_by_routers_alone(name: str) -> None:
    objects = overlay(name)
    policies = {
        each["spec"]["podSelector"]["matchLabels"]["app.kubernetes.io/component"]: each["spec"]
        for each in of_kind(objects, "NetworkPolicy")
    }
    parts = {
        each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        for each in workloads(objects)
    }
    assert policies.keys() == parts == {"router", "triton"}
    assert all(policy["policyTypes"] == ["Ingress", "Egress"] for policy in policies.values())
    for rule in policies["triton"]["ingress"]:
        (port,) = rule["ports"]
        (peer,) = rule["from"]
        if port["port"] == "grpc":
            assert peer == {"podSelector": {"matchLabels": {"app.kubernetes.io/component": "router"}}}


def test_pods_are_given_the_time_that_a_drain_takes() -> None:
    objects = overlay("ha")
    router = named(objects, "Deployment", "inflight-router")["spec"]["template"]["spec"]
    triton = named(objects, "StatefulSet", "inflight-triton")["spec"]["template"]["spec"]
    (served,), (loaded,) = router["containers"], triton["containers"]
    drain_s = next(float(word.partition("=")[2]) for word in served["args"] if "drain-timeout" in word)

    def before_s(container: Object) -> int:
        return int(container["lifecycle"]["preStop"]["exec"]["command"][1])

    assert router["terminationGracePeriodSeconds"] > before_s(served) + longest_stop_s(drain_s, {})
    assert triton["terminationGracePeriodSeconds"] > before_s(loaded) + 2 * UNLOAD_TIMEOUT_S
    assert before_s(loaded) > 30 + drain_s / 2, "as long as caches of DNS last, and answers then take"


def test_a_router_that_drains_is_not_ready_and_not_restarted() -> None:
    (router,) = named(overlay("ha"), "Deployment", "inflight-router")["spec"]["template"]["spec"][
        "containers"
    ]
    assert router["readinessProbe"]["httpGet"]["path"] == "/health/ready"
    assert (
        router["livenessProbe"]["httpGet"]["path"]
        == router["startupProbe"]["httpGet"]["path"]
        == "/health/live"
    )
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= router.keys()


def test_routers_look_up_the_headless_service_of_tritons() -> None:
    objects = overlay("split")
    (router,) = named(objects, "Deployment", "inflight-router")["spec"]["template"]["spec"]["containers"]
    service = named(objects, "Service", "inflight-triton")["spec"]
    assert service["clusterIP"] == "None"
    assert "--triton=dns:///inflight-triton:8001" in router["args"]
    assert 8001 in {port["port"] for port in service["ports"]}


def test_commands_are_those_of_the_compose_file() -> None:
    services = read_compose()["services"]
    objects = overlay("gpu")
    for kind, name, service in (
        ("Deployment", "inflight-router", "router"),
        ("StatefulSet", "inflight-triton", "triton"),
    ):
        (container,) = named(objects, kind, name)["spec"]["template"]["spec"]["containers"]
        ours = {word.partition("=")[0] for word in container["args"]}
        theirs = {word.partition("=")[0] for word in services[service]["command"]}
        # Load tests, and what an environment variable says here.
        assert ours == theirs - {"--loadtest-key-file", "--servers", "--triton-home"}


def test_what_may_go_at_once_is_limited_and_spread_where_there_are_several() -> None:
    objects = overlay("ha")
    for workload in workloads(objects):
        labels = workload["spec"]["selector"]["matchLabels"]
        assert workload["spec"]["replicas"] == 3
        spread = workload["spec"]["template"]["spec"]["topologySpreadConstraints"]
        assert {each["topologyKey"] for each in spread} == {
            "topology.kubernetes.io/zone",
            "kubernetes.io/hostname",
        }
        assert all(each["labelSelector"]["matchLabels"] == labels for each in spread)
        budget = named(objects, "PodDisruptionBudget", workload["metadata"]["name"])["spec"]
        assert budget["selector"]["matchLabels"] == labels
        assert budget["maxUnavailable"] == 1


def test_volumes_of_several_nodes_can_be_written_by_all() -> None:
    for name, mode in (("cpu", "ReadWriteOnce"), ("split", "ReadWriteMany")):
        claims = of_kind(overlay(name), "PersistentVolumeClaim")
        assert [claim["spec"]["accessModes"] for claim in claims] == [[mode], [mode]]


def test_gpus_are_asked_for_in_every_overlay_but_cpu() -> None:
    for name in OVERLAYS:
        (triton,) = named(overlay(name), "StatefulSet", "inflight-triton")["spec"]["template"]["spec"][
            "containers"
        ]
        assert triton["resources"]["limits"].get("nvidia.com/gpu") == (None if name == "cpu" else "1")


def test_autoscalers_follow_the_replicas_that_routers_want(everything: tuple[Object, ...]) -> None:
    (scaled,) = of_kind(everything, "ScaledObject")
    (plain,) = of_kind(everything, "HorizontalPodAutoscaler")
    target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "inflight-triton"}
    assert scaled["spec"]["scaleTargetRef"] == plain["spec"]["scaleTargetRef"] == target
    (trigger,) = scaled["spec"]["triggers"]
    (metric,) = plain["spec"]["metrics"]
    assert "inflight_wanted_replicas" in trigger["metadata"]["query"]
    assert metric["external"]["metric"]["name"] == "inflight_wanted_replicas"


def test_monitors_and_routes_point_at_ports_that_exist(everything: tuple[Object, ...]) -> None:
    ports = {
        each["metadata"]["labels"]["app.kubernetes.io/component"]: {
            port["name"] for port in each["spec"]["ports"]
        }
        for each in of_kind(everything, "Service")
    }
    for monitor in of_kind(everything, "ServiceMonitor"):
        part = monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
        assert {each["port"] for each in monitor["spec"]["endpoints"]} <= ports[part]
    (pool,) = of_kind(everything, "InferencePool")
    assert pool["spec"]["targetPorts"] == [{"number": 8080}]
    assert pool["spec"]["endpointPickerRef"]["name"]
    (ingress,) = of_kind(everything, "Ingress")
    (rule,) = ingress["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": "inflight", "port": {"name": "http"}}
