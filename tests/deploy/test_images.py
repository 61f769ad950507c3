"""The Dockerfiles: what they copy is there, what they pull is pinned, and nobody is root at the end."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.compose_file import ROOT
from deploy.image_packages import name_of, pinned, usable, wanted
from python_backend.engine.host.device import OLDEST_TRITON
from tests.uv_plans import would_install

FILES = sorted((ROOT / "deploy").glob("*.Dockerfile"))
# What each of our programs imports, or finds beside its packages.
SHARED = {"client", "launcher", "loadtest", "python_backend", "router", "simulator"}
REPOSITORIES = {"model_repository", "ensembles"}
FOR_BUILDING = {
    *("deploy/fill_image.sh", "deploy/image_packages.py", "deploy/sbom.py"),
    *("pyproject.toml", "requirements.lock", "README.md", "LICENSE"),
}
WITHOUT_IN_ROUTER = {
    "nvidia-pytriton": "pytriton",
    "numba": "numba",
    "onnx": "onnx",
    "onnxruntime": "onnxruntime",
    "llguidance": "llguidance",
}


def instructions(file: Path) -> list[tuple[str, str]]:
    """Each with its words on one line."""
    text = re.sub(
        r"\\\n\s*", "", "\n".join(line for line in file.read_text().splitlines() if line[:1] != "#")
    )
    found = []
    for line in filter(None, map(str.strip, text.splitlines())):
        name, _, words = line.partition(" ")
        found.append((name, words))
    return found


def sent_to_docker() -> set[str]:
    return {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}


def copied(file: Path) -> set[str]:
    words = [words.split() for name, words in instructions(file) if name == "COPY" and "--from" not in words]
    return {source for each in words for source in each[:-1]}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_copied_file_is_sent_to_docker(file: Path) -> None:
    sent = sent_to_docker()
    folders = {".", *(str(Path(each).parent) for each in sent)}
    assert copied(file) <= sent | folders, ".dockerignore leaves some out"


def test_docker_is_sent_only_files_that_an_image_needs() -> None:
    assert sent_to_docker() == SHARED | REPOSITORIES | FOR_BUILDING
    assert all((ROOT / source).exists() for source in sent_to_docker())


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_code_is_copied_behind_the_packages_so_that_their_layer_stays(file: Path) -> None:
    """And compiled: the root of containers is read-only."""
    text = file.read_text()
    assert "RUN python -m compileall -q .\n" in text
    for stage in re.split(r"^FROM .*$", text, flags=re.MULTILINE):
        code = re.search(r"^COPY (\. \.|--from=code .*)$", stage, re.MULTILINE)
        assert ("CMD" in stage) <= (code is not None)
        assert code is None or "fill_image.sh" not in stage[code.end() :]


def test_the_standard_library_is_compiled_where_the_base_has_it_uncompiled() -> None:
    """Python's official image has; NVIDIA's has what Ubuntu's packages compile when they are installed."""
    packages = (ROOT / "deploy/python.Dockerfile").read_text().partition(" AS packages\n")[2]
    assert "RUN python -m compileall -q -x 'site-packages|/tests?/' /usr/local/lib/python3*\n" in packages


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_images_end_as_one_numeric_user_shared_by_all(file: Path) -> None:
    users = [words for name, words in instructions(file) if name == "USER"]
    assert users
    assert set(users) == {"10001:10001"}
    stages = [words for name, words in instructions(file) if name in ("FROM", "USER", "CMD")]
    assert stages[-2] == "10001:10001", "the last stage has it"
    text = file.read_text()
    assert "install -d -o 10001 -g 10001 /data /state" in text, "volumes begin as theirs"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_bases_and_packages_are_pinned(file: Path) -> None:
    stages, default = set(), {}
    for name, words in instructions(file):
        if name == "ARG":
            default["${" + words.split("=")[0] + "}"] = words.split("=")[1]
        if name != "FROM":
            continue
        base, _, stage = words.partition(" AS ")
        image = default.get(base, base)
        assert image in stages or re.search(r":(\d+\.\d+\.\d+|\d\d\.\d\d)-[\w-]+$", image), image
        stages.add(stage)
    assert "pip install" not in file.read_text(), "fill_image.sh does"


def test_what_fills_an_image_installs_only_versions_of_the_lock() -> None:
    script = re.sub(r"\\\n\s*", "", (ROOT / "deploy/fill_image.sh").read_text())
    installs = [line for line in script.splitlines() if " install " in line and line[0] != "#"]
    assert len(installs) == 4
    assert all("--constraint " in each or "UV_BUILD_CONSTRAINT=" in each for each in installs)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_images_contain_no_compilers_or_package_lists(file: Path) -> None:
    assert "apt-get" not in file.read_text()
    filling = [words for _, words in instructions(file) if "fill_image.sh" in words]
    assert all(words.startswith("--mount=type=cache,target=/root/.cache ") for words in filling)


def test_the_routers_image_contains_all_that_it_imports() -> None:
    left_out = re.findall(r"--without (\S+)", (ROOT / "deploy/python.Dockerfile").read_text())
    assert set(left_out) == WITHOUT_IN_ROUTER.keys()
    blocked = sorted(WITHOUT_IN_ROUTER.values())
    program = f"""
import sys
class Nobody:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Nobody())
import launcher.commands.main
import launcher.commands.deployment.router_server, launcher.commands.deployment.first_keys
import router.command, router.tenants.tenancy
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr


PROJECT: dict[str, object] = {
    "dependencies": ["numpy>=1.26,<2", "Some.Thing[grpc]>=2; python_version < '3.11'"],
    "optional-dependencies": {"redis": ["redis>=5"], "other": []},
}


def test_packages_are_the_projects_less_those_left_out() -> None:
    assert wanted(PROJECT, ["redis"], {"numpy"}) == [
        "Some.Thing[grpc]>=2; python_version < '3.11'",
        "redis>=5",
    ]
    with pytest.raises(SystemExit, match="there is no extra cheese; there are other, redis"):
        wanted(PROJECT, ["cheese"], ())


def test_packages_of_the_base_image_are_not_pinned_to_another_version() -> None:
    lock = ["# made by uv", "numpy==1.26.4", "  some-thing==2 ; python_version < '3.11'", ""]
    assert pinned(lock, {"numpy"})[0] == "some-thing==2 ; python_version < '3.11'"
    assert {name_of(pin) for pin in pinned(lock, {"numpy"})} == {"some-thing", "editables", "hatchling"}


def test_packages_too_old_for_the_project_come_in_the_version_of_the_lock() -> None:
    there = {"llguidance": "0.7.29", "torch": "2.10.0a0+b4e4ee81d3.nv25.12", "numpy": "1.26.4", "six": "1.17"}
    requirements = ["llguidance>=1.9", "torch>=2.9", "numpy>=1.26,<2", "redis>=5"]
    assert usable(requirements, there) == {"torch", "numpy", "six"}
    assert (
        pinned(["llguidance==1.9.1", "numpy==1.26.1"], usable(requirements, there))[0] == "llguidance==1.9.1"
    )


def test_the_gpu_image_gets_the_compiler_that_our_kernels_need_whatever_its_base_has() -> None:
    text = (ROOT / "deploy/triton.Dockerfile").read_text()
    assert f"--also 'triton>={'.'.join(map(str, OLDEST_TRITON))}'" in text
    assert 'INSTALLER="python -m pip" PIP_CONSTRAINT= sh deploy/fill_image.sh' in text, (
        "the base's forbids it"
    )
    assert pinned(["triton==3.6.0"], usable(["triton>=3.6"], {"triton": "3.5.1"}))[0] == "triton==3.6.0"


@pytest.mark.parametrize(("requirement", "name"), [("Some.Thing[x]>=2", "some-thing"), ("a_b==1", "a-b")])
def test_package_names_are_compared_as_indexes_do(requirement: str, name: str) -> None:
    assert name_of(requirement) == name


def test_the_programs_that_choose_packages_run_on_what_is_in_the_repository(tmp_path: Path) -> None:
    options = ["--extra", "postgres", "--without", "numba", "--keep-installed"]
    command = [sys.executable, str(ROOT / "deploy/image_packages.py"), str(tmp_path), *options]
    subprocess.run(command, check=True)
    requirements = (tmp_path / "requirements.txt").read_text()
    assert "psycopg[binary]" in requirements
    assert "numba" not in requirements
    assert "numpy==" not in (tmp_path / "constraints.txt").read_text(), "this environment has one"


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_every_package_of_the_images_has_a_wheel_for_either_architecture(
    architecture: str, tmp_path: Path
) -> None:
    text = (ROOT / "deploy/python.Dockerfile").read_text()
    extras = [word for each in re.findall(r"--extra (\S+)", text) for word in ("--extra", each)]
    command = [sys.executable, ROOT / "deploy/image_packages.py", tmp_path, *extras]
    subprocess.run(command, check=True)
    (python,) = re.findall(r"python:(\d\.\d+)\.\d+-slim-bookworm", text)
    where = (f"--python-platform={architecture}-manylinux_2_36", f"--python-version={python}")
    files = (f"--requirement={tmp_path}/requirements.txt", f"--constraint={tmp_path}/constraints.txt")
    assert "nvidia-pytriton==" in would_install(*where, *files, f"--target={tmp_path}")
