"""`inflight perplexity`: what it shows and what it refuses."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from launcher.commands.perplexity import parse_precisions, report, run_perplexity
from launcher.console import StackConsole
from launcher.settings import SettingsError
from tests.launcher.stand_ins.tiny_model import write_gguf


def recorded() -> tuple[StackConsole, StringIO]:
    output = StringIO()
    console = Console(file=output, highlight=False, width=100)
    return StackConsole(console, console), output


def row(precision: str, change_percent: float) -> dict[str, Any]:
    return {
        "precision": precision,
        "weights_bytes": 143_028_096,
        "perplexity": 24.4381,
        "change_percent": change_percent,
        "tokens": 2190,
    }


def test_the_table_shows_size_perplexity_and_change() -> None:
    console, output = recorded()
    report([row("fp32", 0), row("int8", 0.303), row("int4", -0.01)], console)
    lines = [line.split() for line in output.getvalue().splitlines()]
    assert lines[0] == ["precision", "weights", "perplexity", "against", "fp32", "tokens"]
    assert lines[1] == ["fp32", "143.0", "MB", "24.438", "2,190"]
    assert lines[2] == ["int8", "143.0", "MB", "24.438", "+0.30", "%", "2,190"]
    assert len(lines) == 4, "nothing is worth a note"


def test_a_change_above_three_percent_is_highlighted() -> None:
    console, output = recorded()
    report([row("fp32", 0), row("int8", 2.9), row("int4", 3.1)], console)
    assert "int4 is more than 3 % worse than fp32" in output.getvalue()
    assert "int8 is more" not in output.getvalue()


def test_precisions_are_a_list_with_commas() -> None:
    assert parse_precisions("fp32, int4", "cpu") == ["fp32", "int4"]
    with pytest.raises(
        SettingsError, match="--precision is 'int8,int3'; allowed: one or more of fp32, int8, int4,"
    ):
        parse_precisions("int8,int3", "cpu")


def test_the_configured_device_decides_which_precisions_are_available() -> None:
    assert parse_precisions("bf16,fp8", "cuda") == ["bf16", "fp8"]
    with pytest.raises(SettingsError, match="one or more of fp32, bf16, fp8,"):
        parse_precisions("int8", "cuda")
    assert parse_precisions("int8,fp8", "auto") == ["int8", "fp8"], "the engine knows what it computes on"
    with pytest.raises(SettingsError, match="one or more of fp32, int8, int4, bf16, fp8,"):
        parse_precisions("fp64", "auto")


def test_perplexity_runs_on_a_model_of_a_few_thousand_weights(device: str, tmp_path: Path) -> None:
    smallest = {"cpu": "int4", "cuda": "fp8"}[device]
    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "text.txt").write_text("hello the llama, " * 40)
    config = tmp_path / "inflight.toml"
    config.write_text(f'[engine]\ninflight_device = "{device}"\n')
    console, output = recorded()
    flags = {"model": str(tmp_path / "tiny.gguf"), "data_dir": tmp_path / "data"}
    text = tmp_path / "text.txt"
    assert run_perplexity(flags, config, text, smallest, console) == 0, output.getvalue()
    assert f"Measuring perplexity ({smallest})" in output.getvalue()
    table = output.getvalue().partition("against fp32")[2].splitlines()[1:3]
    assert [line.split()[0] for line in table] == ["fp32", smallest]


@pytest.mark.parametrize(
    ("model", "precision", "status", "words"),
    [("nowhere", "int8", 1, "neither a known model"), ("nowhere", "fp64", 2, "--precision is 'fp64'")],
)
def test_a_model_that_cannot_be_measured_is_reported(
    model: str, precision: str, status: int, words: str, tmp_path: Path
) -> None:
    console, output = recorded()
    assert run_perplexity({"model": model, "data_dir": tmp_path}, None, None, precision, console) == status
    assert words in output.getvalue().replace("\n", " ")


def test_keys_and_values_are_measured_in_fp8_on_a_gpu_only(tmp_path: Path) -> None:
    config = tmp_path / "inflight.toml"
    config.write_text('[engine]\ninflight_device = "cpu"\n')
    for kv_precision, allowed in (("fp8", "auto (inflight_device is cpu)"), ("fp16", "auto, fp8")):
        console, output = recorded()
        assert run_perplexity({}, config, None, None, console, kv_precision) == 2
        words = f"inflight_kv_precision is '{kv_precision}'; allowed: {allowed}"
        assert words in output.getvalue().replace("\n", " ")


def test_a_data_directory_that_cannot_be_created_is_reported(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf")
    (tmp_path / "data").write_text("a file")
    console, output = recorded()
    flags = {"model": str(tmp_path / "tiny.gguf"), "data_dir": tmp_path / "data"}
    assert run_perplexity(flags, None, None, "int8", console) == 1
    assert "Not a directory" in output.getvalue().replace("\n", " ")
