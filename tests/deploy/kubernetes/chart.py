"""deploy/kubernetes as a Helm chart, rendered."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from deploy.compose_file import ROOT
from tests.kubernetes_programs import run, run_once

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

CHART = ROOT / "deploy" / "kubernetes"
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
# Components that somebody chooses; the others follow from what is chosen.
OPTIONAL: list[str] = SCHEMA["properties"]["components"]["items"]["enum"]

Object = dict[str, Any]


def objects_of(text: str) -> tuple[Object, ...]:
    return tuple(each for each in yaml.load_all(text, yaml.CSafeLoader) if each)


def template(
    *values: Path, chart: Path = CHART, namespace: str = "inflight"
) -> subprocess.CompletedProcess[str]:
    files = [f"--values={file}" for file in values]
    words: list[str | Path] = ["template", "inflight", chart, f"--namespace={namespace}", *files]
    if chart.is_dir():
        return run_once("helm", *words, reads=(chart, *values))
    return run("helm", *words)  # a package, which has the time in it


def rendered(*values: Path, chart: Path = CHART, namespace: str = "inflight") -> tuple[Object, ...]:
    done = template(*values, chart=chart, namespace=namespace)
    assert done.returncode == 0, done.stderr
    return objects_of(done.stdout)


def comparable(objects: tuple[Object, ...]) -> dict[tuple[str, str], Object]:
    """By kind and name, and without the mark by which other settings are other pods.

    Kustomize's is a part of the ConfigMap's name, the chart's an annotation of pods.
    """
    copies: list[Object] = json.loads(json.dumps(objects))
    (settings,) = (each["metadata"] for each in copies if each["kind"] == "ConfigMap")
    for pod in (each["spec"]["template"] for each in copies if "template" in each.get("spec", {})):
        (mounted,) = (volume["configMap"] for volume in pod["spec"]["volumes"] if "configMap" in volume)
        assert mounted["name"] == settings["name"]
        mounted["name"] = "inflight"
        pod["metadata"].pop("annotations", None)
    settings["name"] = "inflight"
    found = {(each["kind"], each["metadata"]["name"]): each for each in copies}
    assert len(found) == len(copies), "no two are the same"
    return found
