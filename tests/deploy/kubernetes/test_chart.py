"""The Helm chart of deploy/kubernetes: what values change, and what is said of wrong ones."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.compose_file import ROOT
from deploy.compose_file import compose as read_compose
from tests.deploy.kubernetes.chart import CHART, OPTIONAL, SCHEMA, Object, rendered, template
from tests.kubernetes_programs import run, run_once

# They follow from the GPUs of a Triton and from the volumes.
IMPLIED = {"gpu", "one-node"}
OTHER = """
registry: registry.example.com/team
tag: 1.2.3
pullSecrets: [registry]
model: hf://org/name@revision
embeddings: ""
settings: |
  [stack]
  data_dir = "/data"
router: {resources: {limits: {memory: 4Gi}}}
triton: {gpus: 2, image: inflight-triton-vllm, resources: {requests: {cpu: "8"}}}
storage: {className: fast, models: 2Ti}
components: [ingress, httproute, keda]
host: chat.example.org
prometheus: https://prometheus.example.org
patches:
  - kind: StatefulSet
    metadata: {name: inflight-triton}
    spec:
      template:
        spec:
          nodeSelector: {nvidia.com/gpu.present: null, pool: h200}
          containers:
            - name: triton
              env: [{name: HF_HUB_OFFLINE, value: "1"}]
              volumeMounts: [{name: more, mountPath: /models}]
          volumes: [{name: more, persistentVolumeClaim: {claimName: more}}]
"""
WRONG = """
replicas: 3
router: {replica: 3}
triton: {gpus: -1, image: triton}
storage: {accessMode: ReadWriteTwice, state: 10}
components: [ingres]
patches: [{kind: Service}]
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As it is given to others: whatever it needs is inside."""
    folder = tmp_path_factory.mktemp("package")
    done = run("helm", "package", CHART, "--destination", folder)
    assert done.returncode == 0, done.stderr
    (found,) = folder.glob("inflight-*.tgz")
    return found


@pytest.fixture(scope="module")
def objects(package: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Object]:
    values = tmp_path_factory.mktemp("other") / "values.yaml"
    values.write_text(OTHER)
    return {f"{each['kind']} {each['metadata']['name']}": each for each in rendered(values, chart=package)}


def container(workload: Object) -> Any:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return found


def test_helm_finds_nothing_to_complain_about() -> None:
    done = run_once("helm", "lint", "--strict", CHART, reads=[CHART])
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_chart_has_the_version_of_the_project() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version[1]


def test_every_component_can_be_chosen_and_every_image_too() -> None:
    assert {path.name for path in (CHART / "components").iterdir()} == {*OPTIONAL, *IMPLIED}
    images = {each["image"].partition(":")[0] for each in read_compose()["services"].values()}
    known = SCHEMA["properties"]["triton"]["properties"]["image"]["enum"]
    assert set(known) == {"", *(name for name in images if name.startswith("inflight-triton"))}


def test_values_and_their_schema_have_the_same_names() -> None:
    def check(values: dict[str, Any], schema: dict[str, Any]) -> None:
        assert set(schema["propertyNames"]["enum"]) == schema["properties"].keys()
        assert values.keys() == schema["properties"].keys() - {"global"}, "global is Helm's own"
        for name, value in values.items():
            if isinstance(value, dict) and "properties" in schema["properties"][name]:
                check(value, schema["properties"][name])

    check(yaml.safe_load((CHART / "values.yaml").read_text()), SCHEMA)


def test_the_page_explains_every_value() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    for name, value in yaml.safe_load((CHART / "values.yaml").read_text()).items():
        for each in [f"{name}.{inner}" for inner in value] if isinstance(value, dict) else [name]:
            assert f"`{each}`" in page


def test_pods_have_the_images_of_a_registry_and_the_model_that_is_asked_for(
    objects: dict[str, Object],
) -> None:
    router, triton = objects["Deployment inflight-router"], objects["StatefulSet inflight-triton"]
    assert container(router)["image"] == "registry.example.com/team/inflight-router:1.2.3"
    assert container(triton)["image"] == "registry.example.com/team/inflight-triton-vllm:1.2.3"
    for each in (router, triton):
        assert each["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    told = {each["name"]: each["value"] for each in container(triton)["env"]}
    assert (told["INFLIGHT_MODEL"], told["INFLIGHT_EMBEDDINGS"]) == ("hf://org/name@revision", "")


def test_resources_are_put_over_those_of_the_base(objects: dict[str, Object]) -> None:
    router = container(objects["Deployment inflight-router"])["resources"]
    triton = container(objects["StatefulSet inflight-triton"])["resources"]
    assert router == {"requests": {"cpu": "1", "memory": "1Gi"}, "limits": {"memory": "4Gi"}}
    assert triton["requests"] == {"cpu": "8", "memory": "64Gi", "nvidia.com/gpu": "2"}
    claim = objects["PersistentVolumeClaim inflight-models"]["spec"]
    assert claim["storageClassName"] == "fast"
    assert claim["resources"]["requests"]["storage"] == "2Ti"


def test_settings_are_mounted_and_other_ones_are_other_pods(objects: dict[str, Object]) -> None:
    assert objects["ConfigMap inflight"]["data"] == {"inflight.toml": '[stack]\ndata_dir = "/data"\n'}
    marks = {
        each["spec"]["template"]["metadata"]["annotations"]["checksum/settings"]
        for each in objects.values()
        if each["kind"] in ("Deployment", "StatefulSet")
    }
    assert len(marks) == 1


def test_components_are_told_the_names_of_this_cluster(objects: dict[str, Object]) -> None:
    assert "inflight.example.com" not in str(objects)
    assert objects["HTTPRoute inflight"]["spec"]["hostnames"] == ["chat.example.org"]
    (trigger,) = objects["ScaledObject inflight-triton"]["spec"]["triggers"]
    assert trigger["metadata"]["serverAddress"] == "https://prometheus.example.org"


def test_an_autoscaler_alone_says_how_many_tritons_there_are(objects: dict[str, Object]) -> None:
    assert "replicas" not in objects["StatefulSet inflight-triton"]["spec"]


def test_patches_change_what_they_name_and_leave_the_rest(objects: dict[str, Object]) -> None:
    triton = objects["StatefulSet inflight-triton"]
    pod = triton["spec"]["template"]["spec"]
    assert pod["nodeSelector"] == {"pool": "h200"}
    names = [each["name"] for each in container(triton)["env"]]
    assert len(names) == len(set(names))
    assert {"HF_HUB_OFFLINE", "HOME", "INFLIGHT_TRITON_HOME"} <= set(names)
    mounts = {each["mountPath"] for each in container(triton)["volumeMounts"]}
    assert {"/models", "/data", "/dev/shm"} <= mounts
    assert {"more", "state"} <= {each["name"] for each in pod["volumes"]}


def test_a_patch_for_an_object_that_is_not_there_is_refused_with_those_that_are(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("patches: [{kind: Deployment, metadata: {name: inflight-triton}}]")
    done = template(values)
    assert "patches has one for Deployment inflight-triton; there are: " in done.stderr
    assert "StatefulSet inflight-triton" in done.stderr


def test_wrong_values_are_refused_with_what_is_allowed(tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text(WRONG)
    done = template(values)
    assert done.returncode != 0
    for said in (
        "invalid propertyName 'replicas'\n  - at '': value must be one of 'registry', 'tag'",
        "invalid propertyName 'replica'\n  - at '': value must be one of 'replicas', 'resources'",
        "'/triton/gpus': minimum: got -1, want 0",
        "'/triton/image': value must be one of '', 'inflight-triton', 'inflight-triton-cpu'",
        "'/storage/accessMode': value must be one of 'ReadWriteOnce', 'ReadWriteMany'",
        "'/storage/state': got number, want string",
        "'/components/0': value must be one of 'spread', 'monitoring'",
        "'/patches/0': missing property 'metadata'",
    ):
        assert said in done.stderr
