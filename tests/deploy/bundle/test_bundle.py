"""A bundle made of small wheels: resolved for its target, the same bytes each time, and it installs."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from functools import partial
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name
from rich.console import Console

from deploy.bundle import __main__ as bundling
from deploy.bundle.__main__ import PYTHONS, bundle_name
from deploy.bundle.archive import write_archive
from deploy.bundle.contents import contents
from deploy.bundle.selection import LEFT_OUT
from deploy.bundle.wheels import BundleError, Target, Wheelhouse, check_hashes, pins_of, visit
from deploy.sbom import Part, installed_parts, parts_of_wheels, render
from launcher.console import StackConsole
from launcher.packaging.models.checkpoint import CheckpointError
from launcher.settings import StackSettings

HERE = "{}.{}".format(*sys.version_info[:2])
OTHER = "3.12" if HERE != "3.12" else "3.11"


def wheel(directory: Path, name: str, tag: str = "py3-none-any", *needs: str, **files: str) -> None:
    name, _, version = name.partition("==")
    version = version or "1.0"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += "".join(f"Requires-Dist: {need}\n" for need in needs)
    with zipfile.ZipFile(directory / f"{name}-{version}-{tag}.whl", "w") as archive:
        about = f"{name}-{version}.dist-info"
        archive.writestr(f"{about}/METADATA", metadata)
        archive.writestr(f"{about}/WHEEL", f"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: {tag}\n")
        archive.writestr(f"{about}/RECORD", "")
        for path, text in {f"{name}/__init__.py": "", **files}.items():
            archive.writestr(path, text)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("registry")
    for minor in (10, 11, 12):
        tag = f"cp3{minor}-cp3{minor}-manylinux_2_28_x86_64"
        wheel(directory, "quick", tag, "plain[more]", 'old; python_version < "3.11"', "numba")
    wheel(directory, "plain", "py3-none-any", 'extra-part; extra == "more"', 'unasked; extra == "less"')
    wheel(directory, "extra_part")
    wheel(directory, "old")
    wheel(directory, "nvidia_pytriton", "py3-none-manylinux_2_35_x86_64", "pyzmq")
    return directory


def gather(registry: Path, into: Path, python: str, lock: str = "") -> list[Path]:
    into.mkdir()
    lock_file = into.with_suffix(".lock")
    lock_file.write_text(lock)
    options = ["--no-index", f"--find-links={registry}"]
    house = Wheelhouse(Target(python), lock_file, into, options)
    return house.gather([Requirement("quick>=1"), Requirement("nvidia-pytriton")])


def test_wheels_are_those_of_the_target_with_their_requirements_there(registry: Path, tmp_path: Path) -> None:
    wheels = gather(registry, tmp_path / "wheels", "3.12")
    assert [path.name.partition("-1.0")[0] for path in wheels] == [
        "extra_part",
        "nvidia_pytriton",
        "plain",
        "quick",
    ]
    assert "cp312" in wheels[-1].name


@pytest.mark.parametrize("python", PYTHONS)
def test_every_package_of_a_bundle_is_pinned_and_known_by_its_bytes(python: str) -> None:
    """By what this environment's packages need there: a bundle that could not be made is found out here."""
    target, root = Target(python), Path(__file__).parents[3]
    pins = pins_of(root / "requirements.lock")
    pinned = {canonicalize_name(pin.name): pin for pin in pins if target.applies(pin)}
    hashed = set(re.findall(r"^([\w.-]+)==", (root / "requirements.hashes").read_text(), re.MULTILINE))
    found: set[NormalizedName] = set()

    def requires(name: str) -> list[str]:
        try:
            return importlib.metadata.requires(name) or []
        except importlib.metadata.PackageNotFoundError:
            return []  # of another Python or machine than this one

    needs = [Requirement(text) for text in importlib.metadata.requires("inflight") or []]
    direct = [need for need in needs if target.applies(need)]

    def fetch(wanted: list[Requirement]) -> None:
        found.update(canonicalize_name(each.name) for each in wanted)

    visit(direct, target, fetch, requires)
    assert {"nvidia-pytriton", "numpy", "msgspec"} <= found
    assert not found - pinned.keys(), "not in requirements.lock for this Python"
    assert not found - hashed, "not in requirements.hashes"
    assert not found & LEFT_OUT
    assert all(str(pinned[name].specifier).startswith("==") for name in found)


def test_a_wheel_with_other_bytes_than_the_known_ones_is_refused(registry: Path, tmp_path: Path) -> None:
    wheels = gather(registry, tmp_path / "wheels", "3.12")
    hashes = tmp_path / "requirements.hashes"
    known = [f"x==1.0 --hash=sha256:{hashlib.sha256(each.read_bytes()).hexdigest()}\n" for each in wheels]
    hashes.write_text("".join(known))
    check_hashes(wheels, hashes)
    with zipfile.ZipFile(wheels[-1], "a") as archive:
        archive.writestr("quick/more.py", "import os")
    with pytest.raises(BundleError, match=r"requirements\.hashes lists: quick-1\.0"):
        check_hashes(wheels, hashes)


def test_the_list_of_a_bundles_parts_has_versions_licences_and_hashes(registry: Path, tmp_path: Path) -> None:
    wheels = gather(registry, tmp_path / "wheels", "3.12")
    own = Part("inflight", "0.8.0", "Apache-2.0")
    listed = json.loads(render("inflight.tar.xz", "0.8.0", [own, *parts_of_wheels(wheels)]))
    assert (listed["bomFormat"], listed["specVersion"]) == ("CycloneDX", "1.6")
    found = {part["purl"]: part for part in listed["components"]}
    assert found.keys() == {
        "pkg:pypi/inflight@0.8.0",
        *(f"pkg:pypi/{name}@1.0" for name in ("extra-part", "nvidia-pytriton", "plain", "quick")),
    }
    assert found["pkg:pypi/inflight@0.8.0"]["licenses"] == [{"license": {"id": "Apache-2.0"}}]
    (sha256,) = found["pkg:pypi/quick@1.0"]["hashes"]
    assert sha256["content"] == hashlib.sha256(wheels[-1].read_bytes()).hexdigest()


def test_a_wheel_that_contains_packages_of_others_is_listed_by_its_own_name(tmp_path: Path) -> None:
    wheel = tmp_path / "setup-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for place, name in (("setup/_vendor/other", "other"), ("setup", "setup")):
            archive.writestr(f"{place}-1.0.dist-info/METADATA", f"Name: {name}\nVersion: 1.0\n")
    assert [part.name for part in parts_of_wheels([wheel])] == ["setup"]


def test_the_triton_inside_a_package_is_listed_by_the_name_that_scanners_know() -> None:
    (pinned,) = re.findall(r'"nvidia-pytriton==(.+?)"', (bundling.ROOT / "pyproject.toml").read_text())
    listed = json.loads(render("image", "0.8.0", [Part("nvidia-pytriton", pinned)]))
    (triton,) = (part for part in listed["components"] if part["name"] == "tritonserver")
    assert triton["cpe"] == f"cpe:2.3:a:nvidia:triton_inference_server:{triton['version']}:*:*:*:*:*:*:*"
    changelog = (bundling.ROOT / "CHANGELOG.md").read_text()
    assert f"Tested with Triton {triton['version']} (nvidia-pytriton {pinned})" in changelog


def test_the_list_of_an_images_parts_is_what_is_installed_there(tmp_path: Path) -> None:
    metadata = tmp_path / "plain-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: plain\nVersion: 1.0\nLicense: MIT\n")
    assert installed_parts(tmp_path) == [Part("plain", "1.0", "MIT")]


def test_markers_are_evaluated_for_the_targets_python(registry: Path, tmp_path: Path) -> None:
    names = [path.name for path in gather(registry, tmp_path / "wheels", "3.10")]
    assert "old-1.0-py3-none-any.whl" in names


def test_bundled_versions_are_those_of_the_lock(registry: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="pip could not download"):
        gather(registry, tmp_path / "wheels", "3.12", "# pins\nquick==2.0 ; python_version >= '3.11'\n")


PROJECT = {
    "LICENSE": "",
    "README.md": "",
    "launcher/cli.py": """
def main():
    import sys, quick
    print('served', quick.__file__, *sys.argv[1:])
""",
}


@pytest.fixture(scope="module")
def archive(registry: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle for this Python."""
    folder = tmp_path_factory.mktemp("bundle")
    project = folder / "project"
    for name, text in PROJECT.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)
    device = Path(__file__).parents[3] / "python_backend"
    for name in (
        "__init__.py",
        "costs/__init__.py",
        "costs/step_cost.py",
        "engine/__init__.py",
        "engine/host/__init__.py",
        "engine/host/device.py",
        "wire/__init__.py",
        "wire/errors.py",
        "wire/parameters.py",
        "wire/pools.py",
    ):
        (project / "python_backend" / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(device / name, project / "python_backend" / name)
    wheels = gather(registry, folder / "wheels", HERE)
    sums = [
        write_archive(folder / name / "x.tar.xz", contents(project, wheels, "1.0", HERE))
        for name in ("dist", "again")
    ]
    assert sums[0] == sums[1]
    return folder / "dist" / "x.tar.xz"


@pytest.fixture
def bundle(archive: Path, tmp_path: Path) -> Path:
    """Unpacked."""
    (tmp_path / "unpacked").mkdir()
    subprocess.run(["tar", "-xf", archive, "-C", tmp_path / "unpacked"], check=True)
    return tmp_path / "unpacked" / "inflight-1.0"


def host(tmp_path: Path, cuda: str | None = "13.0", torch: str = "2.11.0") -> dict[str, str]:
    """An environment whose python3 has a torch."""
    for name, version in (("torch", torch), ("triton", "3.6.0")):
        (tmp_path / "host" / name).mkdir(parents=True)
        (tmp_path / "host" / name / "__init__.py").touch()
        information = tmp_path / "host" / f"{name}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (tmp_path / "host" / "torch" / "version.py").write_text(f"cuda: Optional[str] = {cuda!r}\n")
    # A newer one than ours, as hosts have.
    (tmp_path / "host" / "quick").mkdir()
    (tmp_path / "host" / "quick" / "__init__.py").touch()
    commands = tmp_path / "bin"
    commands.mkdir()
    (commands / "python3").symlink_to(os.path.realpath(sys.executable))
    path = f"{commands}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": str(tmp_path / "host")}


def run(bundle: Path, environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(bundle / "bin" / "inflight"), *arguments]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=bundle.parent, timeout=120
    )


def test_one_command_creates_the_environment_and_serves_with_the_hosts_torch(
    bundle: Path, tmp_path: Path
) -> None:
    environment = host(tmp_path)
    first = run(bundle, environment, "up", "--port", "9000")
    assert first.returncode == 0, first.stderr
    ours = bundle / "lib" / "quick" / "__init__.py"
    assert "Making an environment" in first.stderr
    assert first.stdout.startswith("served")
    del environment["PYTHONPATH"]
    moved = bundle.rename(bundle.with_name("elsewhere"))
    (moved.parent / "launcher").mkdir()  # in the working directory, and not ours
    again = run(moved, environment, "up", "--port", "9000")
    assert again.stdout.split()[0] == "served"
    assert Path(again.stdout.split()[1]).resolve() == moved / ours.relative_to(bundle)
    assert again.stdout.split()[2:] == ["up", "--port", "9000"]
    torch = subprocess.run(
        [moved / ".venv" / "bin" / "python", "-c", "import torch; print(torch.__file__)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert torch.stdout.strip() == str(tmp_path / "host" / "torch" / "__init__.py")
    assert not list((moved / "lib").glob("pyzmq*"))


def test_the_output_of_the_first_command_may_be_a_pipe_that_ends_after_a_line(
    bundle: Path, tmp_path: Path
) -> None:
    command = ["sh", "-c", f"{bundle}/bin/inflight version | head -1"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=host(tmp_path), cwd=tmp_path, timeout=120
    )
    assert done.stdout.startswith("served")
    assert "Traceback" not in done.stderr
    assert "BrokenPipe" not in done.stderr


def test_a_torch_without_cuda_is_refused_and_nothing_is_left_behind(bundle: Path, tmp_path: Path) -> None:
    refused = run(bundle, host(tmp_path, cuda=None), "up")
    assert refused.returncode == 1
    assert "is built without CUDA" in refused.stderr
    assert "first in PATH" in refused.stderr
    assert not (bundle / ".venv").exists()


def test_a_torch_that_is_too_old_is_refused(bundle: Path, tmp_path: Path) -> None:
    refused = run(bundle, host(tmp_path, torch="2.8.0"), "up")
    assert refused.returncode == 1
    assert "is 2.8; the engine needs 2.9 or newer" in refused.stderr


def test_several_starts_at_once_create_one_environment(bundle: Path, tmp_path: Path) -> None:
    environment = host(tmp_path)
    (bundle / ".venv.123").mkdir()  # left by one that was killed
    command = [str(bundle / "bin" / "inflight"), "up"]
    running = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, cwd=tmp_path
        )
        for _ in range(3)
    ]
    said = [process.communicate(timeout=120) for process in running]
    assert [process.returncode for process in running] == [0, 0, 0], said
    assert sum("Making an environment" in err for _, err in said) == 1
    assert all("served" in out for out, _ in said)
    assert [path.name for path in bundle.glob(".venv*")] == [".venv"]


def install(bundle: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [str(bundle / "install")]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=120)


def test_an_environment_is_made_again_only_when_its_sources_have_changed(
    bundle: Path, tmp_path: Path
) -> None:
    environment = host(tmp_path)
    assert install(bundle, environment).returncode == 0
    (bundle / ".venv" / "in-use").touch()
    again = install(bundle, environment)
    assert again.returncode == 0, again.stderr
    assert "Making" not in again.stderr
    assert (bundle / ".venv" / "in-use").exists()
    environment["PYTHONPATH"] = str((tmp_path / "host").rename(tmp_path / "moved"))
    assert "Making" in install(bundle, environment).stderr
    assert not (bundle / ".venv" / "in-use").exists()
    assert [path.name for path in bundle.glob(".venv*")] == [".venv"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_bundle_folder_is_reported_in_a_sentence(bundle: Path, tmp_path: Path) -> None:
    bundle.chmod(0o555)
    refused = run(bundle, host(tmp_path), "up")
    bundle.chmod(0o755)
    assert refused.returncode == 1
    assert f"no environment can be made in {bundle}: Permission denied" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_an_unwritable_lock_file_is_reported_in_a_sentence(bundle: Path, tmp_path: Path) -> None:
    (bundle / ".install.lock").mkdir()  # stands in for what even root may not write
    refused = run(bundle, host(tmp_path), "up")
    assert refused.returncode == 1
    assert f"no environment can be made in {bundle}: " in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_stopped_installation_leaves_nothing_half_made(bundle: Path, tmp_path: Path) -> None:
    environment = host(tmp_path)
    # What is made is held up in the middle, where a file of the venv is written.
    script = bundle / "install"
    script.write_text(script.read_text().replace("command.chmod(0o755)", "import time; time.sleep(60)"))
    with subprocess.Popen([str(script)], stdout=subprocess.DEVNULL, env=environment) as process:
        while not list(bundle.glob(".venv.*/bin/inflight")):
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
        assert process.wait(timeout=30) == 128 + signal.SIGTERM
    assert list(bundle.glob(".venv*")) == []


def test_the_bundles_name_says_for_which_python_it_is() -> None:
    assert bundle_name("0.3.0", "3.12") == "inflight-0.3.0-py312-x86_64.tar.xz"
    assert bundle_name("0.3.0", "3.11", with_vllm=True) == "inflight-0.3.0-py311-x86_64-vllm.tar.xz"


def test_an_unavailable_model_is_reported_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise CheckpointError("there is no room")

    monkeypatch.setattr(bundling, "resolve_checkpoint", refuse)
    monkeypatch.setattr(sys, "argv", ["make bundle", "--with-default-model"])
    with pytest.raises(SystemExit, match="there is no room"):
        bundling.main()


def test_bundled_models_are_found_where_the_launcher_looks(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bundling, "StackSettings", partial(StackSettings, data_dir=data_dir))
    models = bundling.default_models(StackConsole(Console(quiet=True)))
    packed = contents(tmp_path, [], "1.0", HERE, models)
    for model, file in ((StackSettings.model, "model.gguf"), (StackSettings.embeddings, "model.safetensors")):
        assert PurePosixPath("inflight-1.0/models") / model / file in packed
    assert not [path for path in contents(tmp_path, [], "1.0", HERE) if "models" in path.parts]


def test_the_list_of_parts_is_in_the_bundle_and_is_the_same_each_time() -> None:
    first, second = (bundling.same_each_time(render("x", "1.0", [Part("a", "1")])) for _ in range(2))
    assert first == second
    assert json.loads(first)["components"][0]["name"] == "a"
    packed = contents(Path("/nowhere"), [], "1.0", HERE, parts=first)
    assert packed[PurePosixPath("inflight-1.0/sbom.cdx.json")].read().decode() == first


def test_a_python_of_another_version_is_refused(bundle: Path, tmp_path: Path) -> None:
    (bundle / "python-version").write_text(OTHER)
    refused = run(bundle, host(tmp_path), "up")
    assert refused.returncode == 1
    assert f"this bundle is for Python {OTHER}; python3 is {HERE}" in refused.stderr
    assert f"make bundle PYTHON_VERSION={HERE}" in refused.stderr
