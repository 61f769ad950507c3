"""The run's own copy of the model repositories."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import (
    ModelConfig,
)

from launcher.packaging.repository import RepositoryError, open_releases, write_repository
from launcher.paths import PROJECT_ROOT
from tests.launcher.stand_ins.project import write_project


def parameters_of(config_path: Path) -> dict[str, str]:
    config = text_format.Parse(config_path.read_text(), ModelConfig())
    return {key: value.string_value for key, value in config.parameters.items()}


def test_parameters_are_set_and_added_and_the_others_kept(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project")
    awkward = 'a "quoted" \\ path/with\nnewline and ünïcode'
    values = {"gpt_model_path": awkward, "new_key": "7"}
    write_repository(project / "model_repository", tmp_path / "copy", {"tensorrt_llm": values})
    written = parameters_of(tmp_path / "copy" / "tensorrt_llm" / "config.pbtxt")
    assert written == {"gpt_model_path": awkward, "new_key": "7", "kept": "as it was"}
    original = parameters_of(project / "model_repository" / "tensorrt_llm" / "config.pbtxt")
    assert original["gpt_model_path"] == "/models/engine"


def test_only_models_are_copied_because_triton_stops_at_anything_else(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project")
    (project / "model_repository" / "__pycache__").mkdir()
    (project / "model_repository" / "README.md").write_text("not a model")
    (project / "model_repository" / "tensorrt_llm" / "1" / "__pycache__").mkdir()
    write_repository(project / "model_repository", tmp_path / "copy", {})
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["tensorrt_llm"]
    assert list((tmp_path / "copy" / "tensorrt_llm" / "1").iterdir()) == []


def test_a_model_can_be_left_out(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project")
    shutil.copytree(project / "ensembles" / "ensemble", project / "model_repository" / "other")
    write_repository(project / "model_repository", tmp_path / "copy", {}, left_out=["other"])
    assert [path.name for path in (tmp_path / "copy").iterdir()] == ["tensorrt_llm"]


def test_a_missing_repository_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RepositoryError, match="there is no model in"):
        write_repository(tmp_path / "nothing", tmp_path / "copy", {})


def test_a_config_that_does_not_parse_is_named(tmp_path: Path) -> None:
    project = write_project(tmp_path / "project")
    (project / "model_repository" / "tensorrt_llm" / "config.pbtxt").write_text("parameters ${x}")
    with pytest.raises(RepositoryError, match=r"config\.pbtxt cannot be read"):
        write_repository(project / "model_repository", tmp_path / "copy", {"tensorrt_llm": {"a": "b"}})


@pytest.mark.parametrize("repository", ["model_repository", "ensembles"])
def test_the_projects_own_repositories_can_be_written(repository: str, tmp_path: Path) -> None:
    parameters = {
        name: {"tokenizer_dir": "/ckpt"} for name in ("preprocessing", "postprocessing", "tensorrt_llm")
    }
    write_repository(PROJECT_ROOT / repository, tmp_path / "copy", parameters)
    for model in (tmp_path / "copy").iterdir():
        if model.name in parameters:
            assert parameters_of(model / "config.pbtxt")["tokenizer_dir"] == "/ckpt"


def test_the_repository_of_the_releases_is_created_once_and_kept(tmp_path: Path) -> None:
    repository = open_releases(tmp_path, ["ensemble"])
    (repository / "smol.2").mkdir()
    assert open_releases(tmp_path, ["ensemble"]) == repository == tmp_path / "releases" / "repository"
    assert (repository / "smol.2").is_dir()


def test_a_release_named_like_a_model_of_the_stack_is_refused(tmp_path: Path) -> None:
    (open_releases(tmp_path, []) / "ensemble").mkdir()
    with pytest.raises(
        RepositoryError, match=r"repository/ensemble has the name of one of the stack's own models"
    ):
        open_releases(tmp_path, ["ensemble", "tensorrt_llm"])
