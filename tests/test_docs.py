"""Documentation is true: settings, inputs and commands in it are those of the code."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from launcher.settings import ENGINE_KEYS_OF_OURS, StackSettings
from python_backend.engine.host import device
from python_backend.triton_adapter import requests
from python_backend.wire.encoder_parameters import ENCODER_KEYS
from python_backend.wire.errors import ErrorKind
from python_backend.wire.parameters import EngineParameters
from python_backend.wire.tensors import TENSORRT_LLM
from router.settings import Settings as RouterSettings
from tests.pace import patience

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SETTINGS = (ROOT / "docs" / "settings.md").read_text()
CONTRACT = (ROOT / "docs" / "contract.md").read_text()
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def documented_settings(section: str) -> set[str]:
    return set(re.findall(rf"^\| `\[{section}\]` `(\w+)`", SETTINGS, re.MULTILINE))


def section(page: str, title: str) -> str:
    return page.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_every_stack_setting_is_documented_and_no_other() -> None:
    assert documented_settings("stack") == {field.name for field in dataclasses.fields(StackSettings)}


def test_every_router_setting_is_documented_and_no_other() -> None:
    from launcher.settings import ROUTER_KEYS_OF_OURS, SECRETS_BY_FILE

    of_the_router = set(RouterSettings.__struct_fields__) - ROUTER_KEYS_OF_OURS
    assert documented_settings("router") == of_the_router | SECRETS_BY_FILE.keys()


def test_every_engine_setting_is_documented_and_no_other() -> None:
    fields = {field.name for field in dataclasses.fields(EngineParameters)}
    fields -= ENGINE_KEYS_OF_OURS  # the launcher sets them
    assert documented_settings("engine") == fields


def test_every_setting_of_embeddings_is_documented_and_no_other() -> None:
    assert documented_settings("embeddings") == set(ENCODER_KEYS)


def test_refused_inputs_are_those_of_the_code() -> None:
    documented = set(re.findall(r"`(\w+)`", section(CONTRACT, "What it refuses, by name"))) - {"input_ids"}
    without_effect = {"prompt_vocab_size", "len_penalty", "early_stopping", "beam_search_diversity_rate"}
    assert documented == requests._NOT_HONOURED.keys() - without_effect


def test_honoured_and_refused_inputs_are_the_whole_contract() -> None:
    sections = section(CONTRACT, "What the engine honours") + section(CONTRACT, "What it refuses, by name")
    documented = set(re.findall(r"`(\w+)`", sections))
    assert {tensor.name for tensor in TENSORRT_LLM.inputs} <= documented


def test_every_kind_of_error_is_documented() -> None:
    assert {kind.label for kind in ErrorKind} <= set(re.findall(r"`(\w+)`", CONTRACT))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_resolve(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_index_leads_to_every_page() -> None:
    index = ROOT / "docs" / "README.md"
    pages = {page.name for page in (ROOT / "docs").glob("*.md")} - {index.name}
    assert pages == set(re.findall(r"\]\((\w[\w-]*\.md)\)", index.read_text()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_a_section_name_an_existing_one(page: Path) -> None:
    for target, section in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text()):
        there = (page.parent / target if target else page).read_text()
        titles = re.findall(r"^#+ (.+)$", there, re.MULTILINE)
        anchors = {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}
        assert section in anchors, f"{page.name} links to {target}#{section}"


@pytest.mark.parametrize("target", sorted(set(re.findall(r"make ([a-z]+)", README))))
def test_make_targets_in_the_readme_exist(target: str) -> None:
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.MULTILINE)


@pytest.mark.parametrize("command", ["up", "chat", "ask"])
def test_commands_in_the_readme_have_a_help_text(command: str) -> None:
    assert f"inflight {command}" in README
    result = subprocess.run(
        [sys.executable, "-m", "launcher", command, "--help"],
        capture_output=True,
        text=True,
        timeout=patience(60),
    )
    assert result.returncode == 0, result.stderr
    assert "--" in result.stdout


def test_flags_of_up_are_the_stack_settings() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "launcher", "up", "--help"],
        capture_output=True,
        text=True,
        timeout=patience(60),
        env={"PATH": "", "COLUMNS": "200", "NO_COLOR": "1"},
    )
    flags = {f"--{name.replace('_', '-')}" for name in documented_settings("stack")} | {"--config"}
    assert flags == set(re.findall(r"--[a-z][a-z-]+", result.stdout)) - {"--help"}


@pytest.mark.parametrize("page", ["README.md", "docs/operations.md"])
def test_the_documented_gpu_requirements_are_those_of_the_code(page: str) -> None:
    text = (ROOT / page).read_text()
    for oldest in (
        device.OLDEST_CAPABILITY,
        device.OLDEST_FOR_FP8,
        device.OLDEST_TORCH,
        device.OLDEST_TRITON,
    ):
        assert re.search(r"\b{}\.{}\b".format(*oldest), text)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_benchmark_programs_named_on_pages_exist(page: Path) -> None:
    for module in re.findall(r"python -m (benchmarks[\w.]*)", page.read_text()):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").is_file() or (path / "__main__.py").is_file(), module


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_of_the_code_that_pages_name_exist(page: Path) -> None:
    if page.name == "CHANGELOG.md":  # it tells of former versions
        return
    packages = [place.name for place in ROOT.iterdir() if place.is_dir() and not place.name.startswith(".")]
    named = re.findall(rf"`((?:{'|'.join(packages)})/[\w/.-]*\w)", page.read_text())
    to_be_made = re.compile("NAME|^deploy/compose/secrets|^dist/")  # by the reader, by a command
    missing = [name for name in named if not (ROOT / name).exists() and not to_be_made.search(name)]
    assert not missing, f"{page.name} names {missing}"


def test_the_lock_pins_what_the_gpus_tests_compile_with_and_nothing_that_torch_pins() -> None:
    pins = [
        Requirement(line) for line in (ROOT / "requirements.lock").read_text().splitlines() if line[0] != "#"
    ]
    linux = {"sys_platform": "linux", "python_full_version": "3.12.1"}
    for machine in ("x86_64", "aarch64"):
        here = {
            pin.name: str(pin.specifier)
            for pin in pins
            if pin.marker is None or pin.marker.evaluate({**linux, "platform_machine": machine})
        }
        assert {"torch", "triton"} <= here.keys()
        assert machine != "x86_64" or (here["torch"], here["triton"]) == ("==2.11.0", "==3.6.0")
    libraries = {pin.name for pin in pins if pin.name.startswith(("cuda-", "nvidia-"))}
    assert libraries == {"nvidia-pytriton"}


@pytest.mark.parametrize(
    ("file", "extra"), [("requirements.hashes", ""), ("requirements-loadtest.hashes", "loadtest")]
)
def test_what_make_installs_is_hashed_and_as_the_lock_has_it(file: str, extra: str) -> None:
    """`make lock` brings all of them up to date with pyproject.toml."""
    text = (ROOT / file).read_text().replace("\\\n", " ")
    hashed = [Requirement(line.partition("--hash")[0]) for line in text.splitlines()]
    assert all(" --hash=sha256:" in line for line in text.splitlines())
    lock = [
        Requirement(line) for line in (ROOT / "requirements.lock").read_text().splitlines() if line[0] != "#"
    ]
    pinned = {(pin.name, str(pin.specifier)) for pin in lock}
    building = {"editables", "hatchling", "pathspec", "pluggy", "trove-classifiers"}
    assert {(pin.name, str(pin.specifier)) for pin in hashed if pin.name not in building} <= pinned
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *project["optional-dependencies"].get(extra, ())]
    names = {canonicalize_name(pin.name) for pin in hashed}
    assert {canonicalize_name(Requirement(need).name) for need in needed} | {"hatchling"} <= names


def test_changelog_names_the_version_of_the_project() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version
    assert f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text()
