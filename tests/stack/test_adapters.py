"""LoRA adapters in the real stack: added and removed live, named as models, released like any other."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from benchmarks.traffic import completion, traffic
from launcher.commands.adapter import adapter as commands
from router.control.releases.states import State
from tests.pace import patience
from tests.stack.releasing import IN_FLIGHT, ReleaseStack
from tests.stack.tiny_models import HIDDEN

pytestmark = [pytest.mark.stack, pytest.mark.timeout(300)]
LAYERS, RANK = 2, 4


def write_adapter(directory: Path, seed: int, **config: object) -> Path:
    """For the tiny models: enough of one that their words are others."""
    directory.mkdir()
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 64, "target_modules": ["q_proj", "down_proj"]}
    (directory / "adapter_config.json").write_text(json.dumps(settings | config))
    chance = np.random.default_rng(seed)
    tensors = {}
    for layer in range(LAYERS):
        for name, inputs in (("self_attn.q_proj", HIDDEN), ("mlp.down_proj", 2 * HIDDEN)):
            place = f"base_model.model.model.layers.{layer}.{name}.lora"
            tensors[f"{place}_A.weight"] = chance.normal(0, 0.3, (RANK, inputs)).astype(np.float32)
            tensors[f"{place}_B.weight"] = chance.normal(0, 0.3, (HIDDEN, RANK)).astype(np.float32)
    save_file(tensors, directory / "adapter_model.safetensors")
    return directory


def command(stack: ReleaseStack, *words: str, code: int = 0) -> str:
    """`inflight adapter ...`, in this process."""
    options = ["--config", str(stack.config), "--data-dir", str(stack.data_dir)]
    result = CliRunner().invoke(commands, [*words, *options])
    assert result.exit_code == code, result.output
    return result.output


def engines(stack: ReleaseStack) -> set[int]:
    return {each.pid for each in stack.stack.processes("engine.process.main")}


def listed(stack: ReleaseStack) -> dict[str, dict[str, object]]:
    return {
        each["id"]: each for each in httpx.get(f"{stack.url}/v1/models", timeout=patience(30)).json()["data"]
    }


@pytest.fixture(scope="module")
def sql(release_stack: ReleaseStack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("adapters")
    before = engines(release_stack)
    with traffic(release_stack.url, completion("tiny", 8), per_s=5, most_in_flight=IN_FLIGHT) as running:
        told = command(release_stack, "add", "tiny:sql", str(write_adapter(folder / "sql", 1)))
        assert "tiny:sql@1 is served as tiny:sql, an adapter of tiny@1" in told
        running.wait_for(5)
    assert running.errors == []
    assert engines(release_stack) == before, "the engine of the base was loaded again"
    yield "tiny:sql"
    command(release_stack, "remove", "tiny:sql")
    assert "tiny:sql" not in listed(release_stack)
    answer = httpx.post(
        f"{release_stack.url}/v1/completions",
        json={"model": "tiny:sql", "prompt": "One", "max_tokens": 2},
        timeout=patience(30),
    )
    assert answer.status_code == 404
    assert engines(release_stack) == before


def test_an_adapter_is_a_model_of_its_own_with_its_base_as_parent(
    release_stack: ReleaseStack, sql: str
) -> None:
    found = listed(release_stack)[sql]
    assert (found["parent"], found["root"]) == ("tiny", "tiny")
    assert listed(release_stack)["tiny"]["parent"] is None
    assert sql in command(release_stack, "list")
    words, plain = release_stack.ask(sql)[1], release_stack.ask("tiny")[1]
    assert words != plain
    # Neither finds the other's keys and values in the cache.
    assert release_stack.ask(sql)[1] == words
    assert release_stack.ask("tiny")[1] == plain


def test_a_new_version_of_an_adapter_is_promoted_like_any_release_and_the_old_one_can_be_pinned(
    release_stack: ReleaseStack, sql: str, tmp_path: Path
) -> None:
    before = release_stack.ask(sql)[1]
    with traffic(release_stack.url, completion(sql, 8), per_s=10, most_in_flight=IN_FLIGHT) as running:
        release_stack.command("add", sql, str(write_adapter(tmp_path / "sql", 2)))
        release_stack.load(release_stack.find_version(sql, 2))
        release_stack.command("promote", f"{sql}@2")
        release_stack.wait_until_read()
        running.wait_for(5)
    assert running.errors == []
    assert {each.release for each in running.answered} == {"1", "2"}
    version, words = release_stack.ask(sql)
    assert version == 2
    assert words != before == release_stack.ask(f"{sql}@1")[1]


def test_what_cannot_be_served_is_refused_by_name_and_the_base_stays_while_it_has_adapters(
    release_stack: ReleaseStack, sql: str, tmp_path: Path
) -> None:
    dora = write_adapter(tmp_path / "dora", 3, use_dora=True)
    release_stack.command("add", "tiny:dora", str(dora))
    made = release_stack.find_version("tiny:dora", 1)
    release_stack.installation.releases.load("tiny:dora", 1)
    failed = release_stack.wait_for(made, State.FAILED)
    assert "DoRA is not supported" in failed.reason
    with pytest.raises(ValueError, match="is an adapter of tiny@1"):
        release_stack.installation.releases.unload("tiny", 1, withdraw=True)
    assert "is not served" in command(release_stack, "add", "nobody:sql", str(dora), code=2)
    assert "BASE:NAME" in command(release_stack, "add", "sql", str(dora), code=2)
