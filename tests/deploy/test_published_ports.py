"""Every port that a deployment publishes, and the login that it asks for: a new one needs an entry here."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from deploy.compose_file import ROOT, compose
from tests.deploy.kubernetes.chart import rendered
from tests.deploy.kubernetes.test_kubernetes import NAMESPACE, OVERLAYS, built

SERVICES: dict[str, Any] = compose()["services"]
Service = dict[str, Any]


def has_keys(service: Service) -> bool:
    """The router registers this key before it listens: from the first key on nothing works without one."""
    return "--admin-key-file=/run/secrets/admin_key" in service["command"]


def has_basic_auth(service: Service) -> bool:
    given = {"--web.config.file=/run/secrets/prometheus_web", "--web.cors.origin=-"}
    return given <= set(service["command"]) and "prometheus_web" in service["secrets"]


def has_grafanas_login(service: Service) -> bool:
    wanted = {
        "GF_SECURITY_ADMIN_PASSWORD__FILE": "/run/secrets/grafana_password",
        "GF_AUTH_ANONYMOUS_ENABLED": "false",
        "GF_USERS_ALLOW_SIGN_UP": "false",
        "GF_PUBLIC_DASHBOARDS_ENABLED": "false",
        "GF_METRICS_ENABLED": "false",
    }
    environment: dict[str, str] = service["environment"]
    return wanted.items() <= environment.items()


def has_locusts_login(service: Service) -> bool:
    return "INFLIGHT_LOCUST_PASSWORD=$(cat /run/secrets/locust_password)" in service["command"][2]


# Of docker-compose.yml: service and port in the container -> what shows that it asks who calls.
LOGINS: dict[tuple[str, str], Callable[[Service], bool]] = {
    ("router", "8080"): has_keys,
    ("router", "8081"): has_keys,
    ("prometheus", "9090"): has_basic_auth,
    ("grafana", "3000"): has_grafanas_login,
    ("locust", "8089"): has_locusts_login,
}
# What is on a network without being published: the host's own users reach it by the container's address.
UNPUBLISHED = {
    "postgres": "a password (scram-sha-256), store_url",
    "redis": "a password and a user that may do what routers do, redis_acl",
    "triton": "gRPC: a client's certificate; metrics: none, they name no tenant and no key and hold no text",
    "triton-trtllm": "as triton",
    "triton-vllm": "as triton",
    "triton-cpu": "as triton",
    "release": "listens nowhere",
    "release-cpu": "listens nowhere",
}
# Of Kubernetes: Service and port -> the login.
IN_KUBERNETES = {
    ("inflight", "http"): "an API key",
    ("inflight", "grpc"): "an API key",
    ("inflight-triton", "grpc"): "a client's certificate",
    ("inflight-triton", "metrics"): "none: it names no tenant, and only pods named prometheus reach it",
}
ROUTES = ("Ingress", "HTTPRoute", "InferencePool", "Gateway", "GRPCRoute", "TCPRoute")


def published(services: dict[str, Service]) -> Iterator[tuple[str, str, str]]:
    """Service, address on the host, port in the container; in whichever way it is written."""
    for name, service in services.items():
        for port in service.get("ports", ()):
            if isinstance(port, dict):
                yield name, port.get("host_ip", "0.0.0.0"), str(port["target"])
            else:
                address, _, target = str(port).rpartition(":")
                yield name, address.rpartition(":")[0] or "0.0.0.0", target.partition("/")[0]
        assert "network_mode" not in service, f"{name} has the host's ports"


def test_every_published_port_of_every_profile_has_a_login_that_is_named_here() -> None:
    found = {(name, port) for name, _, port in published(SERVICES)}
    assert found == LOGINS.keys()
    assert SERVICES.keys() == {name for name, _ in LOGINS} | UNPUBLISHED.keys()


@pytest.mark.parametrize(("name", "port"), LOGINS, ids=lambda each: each)
def test_a_published_port_asks_for_its_login(name: str, port: str) -> None:
    assert LOGINS[name, port](SERVICES[name])


@pytest.mark.parametrize(
    "written", ["9093:9093", "127.0.0.1:9093:9093", "9093", {"target": 9093, "published": "9093"}]
)
def test_a_port_without_an_entry_would_be_found_however_it_is_written(written: object) -> None:
    services = {"alertmanager": {"ports": [written]}}
    assert [(name, port) for name, _, port in published(services)] == [("alertmanager", "9093")]


def test_ports_are_published_on_loopback_alone() -> None:
    assert {address for _, address, _ in published(SERVICES)} == {"127.0.0.1"}


def test_documented_additions_publish_nothing_without_a_login() -> None:
    """Pages show services that one adds in docker-compose.override.yml."""
    for page in (ROOT / "docs").glob("**/*.md"):
        for block in re.findall(r"```ya?ml\n(.+?)```", page.read_text(), re.DOTALL):
            if block.startswith("services:"):
                assert list(published(yaml.safe_load(block)["services"])) == [], page.name


def objects() -> Iterator[dict[str, Any]]:
    """Those of every overlay, of all components together, and of the chart."""
    for name in (NAMESPACE, *OVERLAYS):
        yield from built()[name]
    yield from rendered()


def test_every_port_of_a_kubernetes_service_has_its_login_named_here() -> None:
    services = [each for each in objects() if each["kind"] == "Service"]
    found = {(each["metadata"]["name"], port["name"]) for each in services for port in each["spec"]["ports"]}
    assert found == IN_KUBERNETES.keys()
    for each in services:
        assert each["spec"].get("type", "ClusterIP") == "ClusterIP", "reached through a route alone"


def test_routes_into_a_cluster_lead_to_the_router_alone_and_no_pod_has_a_port_of_its_node() -> None:
    kinds = set()
    for each in objects():
        text = yaml.safe_dump(each)
        assert "hostPort" not in text
        assert "hostNetwork: true" not in text
        if each["kind"] in ROUTES:
            kinds.add(each["kind"])
            assert "inflight-triton" not in text
            assert "8002" not in text
    assert kinds >= {"Ingress", "HTTPRoute", "InferencePool"}


def test_routers_in_kubernetes_start_with_a_key() -> None:
    routers = [
        each
        for each in objects()
        if each["kind"] == "Deployment" and each["metadata"]["name"] == "inflight-router"
    ]
    assert len(routers) > len(OVERLAYS)
    for each in routers:
        (container,) = each["spec"]["template"]["spec"]["containers"]
        assert "--admin-key-file=/run/inflight/admin_key" in container["args"]
