"""`inflight trtllm`, as a user calls it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from launcher.commands.main import app
from launcher.packaging.trtllm.repository import read_models

ROOT = Path(__file__).parents[4]
REPOSITORIES = (str(ROOT / "model_repository"), str(ROOT / "ensembles"))


def call(*words: str) -> Result:
    return CliRunner().invoke(app, ["trtllm", *words])


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    out = tmp_path_factory.mktemp("nvidia") / "out"
    places = ("--engine-dir", "/models/engine", "--tokenizer-dir", "/models/checkpoint", "--out", str(out))
    result = call("repository", *places)
    assert result.exit_code == 0, result.output
    return out, result.output


def test_our_own_repository_passes_the_check() -> None:
    result = call("check", *REPOSITORIES)
    assert result.exit_code == 0
    assert "26.07 (TensorRT-LLM 1.2.1) would serve these 5 models." in result.output


def test_a_repository_that_fails_the_check_sets_the_exit_status(tmp_path: Path) -> None:
    (tmp_path / "ensemble").mkdir()
    (tmp_path / "ensemble" / "config.pbtxt").write_text('name: "ensemble" platform: "ensemble"')
    result = call("check", str(tmp_path), "--json")
    assert result.exit_code == 1
    found = json.loads(result.output)
    assert found["is_fit"] is False
    assert {"model": "tensorrt_llm", "verdict": "will fail"}.items() <= next(
        each for each in found["findings"] if each["model"] == "tensorrt_llm"
    ).items()


def test_a_folder_that_is_not_a_model_keeps_triton_from_starting(tmp_path: Path) -> None:
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "ensemble").mkdir()
    (tmp_path / "ensemble" / "config.pbtxt").write_text('name: "ensemble" platform: "ensemble"')
    said = call("check", str(tmp_path), str(tmp_path / "missing")).output
    for words in ("__pycache__ has no config.pbtxt", "ensemble has no version", "there is no folder"):
        assert words in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("check", "nowhere"), "there is no model in nowhere"),
        (("check", "nowhere", "--edition", "26.08"), "--edition is '26.08'; allowed: 26.07"),
        (("build", "nowhere", "--out", "there"), "nowhere is not a Hugging Face checkpoint"),
    ],
)
def test_invalid_arguments_are_refused_with_a_sentence(words: tuple[str, ...], said: str) -> None:
    result = call(*words)
    assert result.exit_code == 2
    assert said in result.output


def test_build_prints_what_to_run_and_where(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    result = call("build", str(tmp_path), "--out", str(tmp_path / "out"))
    assert result.exit_code == 0
    where, clone, convert, build = result.output.splitlines()
    assert "tritonserver:26.07-trtllm-python-py3" in where
    assert clone.startswith("git clone --depth 1 --branch v1.2.1")
    assert "models/core/llama/convert_checkpoint.py" in convert
    assert build.startswith("trtllm-build")


def test_build_stops_at_the_first_command_that_fails(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM"]}')
    result = call("build", str(tmp_path), "--out", str(tmp_path), "--examples", str(tmp_path), "--run")
    assert result.exit_code == 2  # python3's own, for a script that is not there
    assert "trtllm-build" not in result.output


def test_a_written_repository_passes_the_check_and_names_the_engine(written: tuple[Path, str]) -> None:
    out, said = written
    assert "PYTHONPATH=/inflight" in said
    assert call("check", str(out / "models")).exit_code == 0
    engine = read_models([out / "models"])["tensorrt_llm"].parameters
    assert engine["gpt_model_path"].string_value == "/models/engine"
    assert engine["normalize_log_probs"].string_value == "false"
    again = ("--engine-dir", "/e", "--tokenizer-dir", "/t", "--out", str(out))
    assert call("repository", *again).exit_code == 2


def test_the_written_python_models_need_nothing_else_of_this_project(written: tuple[Path, str]) -> None:
    out, _ = written
    modules = [f"python_backend.triton_adapter.{name}" for name in ("preprocessing", "postprocessing")]
    code = f"import {', '.join(modules)}, python_backend; print(python_backend.__path__[0])"
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": str(out)},
        cwd=out,
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.stdout.strip() == str(out / "python_backend"), found.stderr
