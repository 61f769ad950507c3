"""The commands that build an engine, and what an engine's folder shows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.packaging.trtllm.build_plan import CONVERTERS, BuildError, BuildPlan, commands
from launcher.packaging.trtllm.edition import NEWEST
from launcher.packaging.trtllm.engines import check_engine_dir
from launcher.packaging.trtllm.findings import Verdict


def checkpoint(folder: Path, architecture: str = "Qwen2ForCausalLM") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    return folder


def value(command: list[str], flag: str) -> str:
    return command[command.index(flag) + 1]


@pytest.mark.parametrize("architecture", CONVERTERS)
def test_a_checkpoint_is_converted_and_built(architecture: str, tmp_path: Path) -> None:
    plan = BuildPlan(checkpoint(tmp_path / "hf", architecture), tmp_path / "out", Path("examples"), gpus=2)
    convert, build = commands(plan)
    script = f"examples/models/core/{CONVERTERS[architecture]}/convert_checkpoint.py"
    assert convert[:2] == ["python3", script]
    assert value(convert, "--output_dir") == value(build, "--checkpoint_dir")
    assert (value(convert, "--tp_size"), value(build, "--workers")) == ("2", "2")
    assert value(build, "--kv_cache_type") == "paged"
    assert value(build, "--use_paged_context_fmha") == "enable"
    assert "--gather_context_logits" not in build


def test_build_options_are_in_the_command(tmp_path: Path) -> None:
    plan = BuildPlan(
        checkpoint(tmp_path), tmp_path, tmp_path, max_seq_len=4096, max_batch_size=32, gather_logits=True
    )
    _, build = commands(plan)
    assert (value(build, "--max_seq_len"), value(build, "--max_batch_size")) == ("4096", "32")
    assert {"--gather_context_logits", "--gather_generation_logits"} <= set(build)


def test_an_unsupported_checkpoint_is_refused_with_the_supported_ones(tmp_path: Path) -> None:
    with pytest.raises(
        BuildError, match="architecture BertModel; engines can be built here for LlamaForCausalLM"
    ):
        commands(BuildPlan(checkpoint(tmp_path, "BertModel"), tmp_path, tmp_path))
    with pytest.raises(BuildError, match="is not a Hugging Face checkpoint"):
        commands(BuildPlan(tmp_path / "none", tmp_path, tmp_path))
    with pytest.raises(BuildError, match="dtype is 'fp8'"):
        commands(BuildPlan(checkpoint(tmp_path), tmp_path, tmp_path, dtype="fp8"))


def test_an_engine_folder_is_checked_for_its_version_and_contents(tmp_path: Path) -> None:
    def verdicts() -> list[Verdict]:
        return [finding.verdict for finding in check_engine_dir(tmp_path, NEWEST)]

    assert [each.verdict for each in check_engine_dir(tmp_path / "none", NEWEST)] == [Verdict.LOOK]
    assert verdicts() == [Verdict.FAILS]
    checkpoint(tmp_path)
    (found,) = check_engine_dir(tmp_path, NEWEST)
    assert "holds no engine, but a checkpoint" in found.what
    config = {"version": "1.2.1", "build_config": {"plugin_config": {"use_paged_context_fmha": True}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "rank0.engine").touch()
    assert verdicts() == []
    (tmp_path / "config.json").write_text(
        json.dumps({**config, "pretrained_config": {"mapping": {"world_size": 2}}})
    )
    assert verdicts() == [Verdict.DIFFERS]  # it needs mpirun
    config["build_config"] = {"plugin_config": {"use_paged_context_fmha": False}}
    (tmp_path / "config.json").write_text(json.dumps({**config, "version": "1.1.0"}))
    assert verdicts() == [Verdict.FAILS, Verdict.DIFFERS]
