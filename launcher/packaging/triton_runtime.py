"""Finds the Triton server inside the nvidia-pytriton wheel and lays out what it needs to run our models."""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.failure import Unusable
from python_backend.host import bytecode

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HOME_VARIABLE = "INFLIGHT_TRITON_HOME"  # as --triton-home, for all commands
ARCHITECTURES = ("x86_64", "aarch64")
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


class RuntimeMissing(Unusable):
    """Something Triton needs is not on this machine; the message names what to install."""


@dataclass(frozen=True)
class TritonRuntime:
    """The directories of one stack's Triton: Python backends, and libpython for their stubs.

    Without a `library_dir` the stub finds its libpython by itself.
    """

    server: Path
    backend_dir: Path
    library_dir: Path | None

    @property
    def is_of_wheel(self) -> bool:
        """The one from PyPI, and not one that was installed by others."""
        return self.library_dir is not None

    def environment(self, base: Mapping[str, str]) -> dict[str, str]:
        """What tritonserver and its stubs must see; the stub finds the virtual environment through PATH."""
        environment = {key: value for key, value in base.items() if key not in ("PYTHONHOME", "PYTHONPATH")}
        environment["PATH"] = join_path(str(Path(sys.executable).parent), base.get("PATH"))
        if self.library_dir is not None:
            environment["LD_LIBRARY_PATH"] = join_path(str(self.library_dir), base.get("LD_LIBRARY_PATH"))
        environment |= bytecode.variables(base)
        # The models have threads of their own; numpy's would fight with them over the cores.
        environment.setdefault("OPENBLAS_NUM_THREADS", "1")
        return environment


def build_runtime(project_root: Path, into: Path) -> TritonRuntime:
    """Lay out one run's backend directory: the Python backend with this Python's stub, and our drop-in."""
    check_architecture(platform.machine())
    wheel = triton_wheel()
    stub = wheel / "python_backend_stubs" / PYTHON / "triton_python_backend_stub"
    if not stub.is_file():
        raise RuntimeMissing(f"the nvidia-pytriton package has no Python backend stub for Python {PYTHON}")
    libpython = find_libpython()
    backend_dir, library_dir = into / "backends", into / "lib"
    lay_out_python_backend(wheel / "backends" / "python", stub, backend_dir)
    # Alone in its directory: nothing else that lies beside the interpreter's library may shadow Triton's own.
    library_dir.mkdir()
    (library_dir / libpython_name()).symlink_to(libpython)
    lay_out_drop_in(project_root, backend_dir)
    return TritonRuntime(wheel / "bin" / "tritonserver", backend_dir, library_dir)


def installed_runtime(home: Path, project_root: Path, into: Path, is_native: bool = False) -> TritonRuntime:
    """A Triton that is there already, as in NVIDIA's images, whose stub is for the image's own Python.

    `is_native`: its own tensorrtllm library is used as it lies there, in the place of our drop-in.
    """
    backends, server = home / "backends", home / "bin" / "tritonserver"
    stub = backends / "python" / "triton_python_backend_stub"
    library = backends / "tensorrtllm" / "libtriton_tensorrtllm.so"
    for needed in (server, stub, library) if is_native else (server, stub):
        if not needed.is_file():
            raise RuntimeMissing(f"--triton-home {home}: there is no {needed.relative_to(home)} in it")
    if is_native:
        return TritonRuntime(server, backends, None)
    lay_out_python_backend(backends / "python", stub, into / "backends")
    lay_out_drop_in(project_root, into / "backends")
    return TritonRuntime(server, into / "backends", None)


def lay_out_python_backend(source: Path, stub: Path, backend_dir: Path) -> None:
    target = backend_dir / "python"
    target.mkdir(parents=True)
    for file in ("libtriton_python.so", "triton_python_backend_utils.py"):
        shutil.copyfile(source / file, target / file)  # Triton refuses links that lead out
    (target / stub.name).symlink_to(stub)  # a link, because it finds its libraries from its real path


def lay_out_drop_in(project_root: Path, backend_dir: Path) -> None:
    """What stands in for backends that this Triton does not have."""
    for model in sorted((project_root / "python_backend" / "backends").glob("*/model.py")):
        drop_in = backend_dir / model.parent.name
        drop_in.mkdir(parents=True)
        shutil.copyfile(model, drop_in / model.name)


def check_architecture(machine: str) -> None:
    if sys.platform != "linux" or machine not in ARCHITECTURES:
        raise RuntimeMissing(
            f"Triton's server is available for Linux on {' and '.join(ARCHITECTURES)}; this is "
            f"{sys.platform} on {machine}"
        )


def triton_wheel() -> Path:
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise RuntimeMissing(
            "the nvidia-pytriton package is missing from this environment: run `make install`"
        )
    return Path(spec.origin).parent / "tritonserver"


def triton_backends() -> Path:
    """Of the Triton that is installed on its own, where the environment names one, or of the wheel."""
    home = os.environ.get(HOME_VARIABLE)
    return (Path(home) if home else triton_wheel()) / "backends"


def libpython_name() -> str:
    return f"libpython{PYTHON}.so.1.0"


def find_libpython() -> Path:
    """The shared library of the running Python; statically linked interpreters come without one."""
    for directory in library_directories():
        candidate = directory / libpython_name()
        if candidate.is_file():
            return candidate.resolve()
    raise RuntimeMissing(libpython_advice(os_family(), sys.base_prefix))


def library_directories() -> Iterator[Path]:
    configured = (sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBPL"))
    multiarch = sysconfig.get_config_var("MULTIARCH")
    yield Path(sys.base_prefix) / "lib"
    yield from (Path(directory) for directory in configured if directory)
    yield from ldconfig_directories()
    for parent in ("/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/local/lib64", "/lib"):
        yield Path(parent)
        if multiarch:
            yield Path(parent) / multiarch


def ldconfig_directories() -> Iterator[Path]:
    ldconfig = shutil.which("ldconfig", path=join_path("/sbin:/usr/sbin", os.environ.get("PATH")))
    if ldconfig is None:
        return
    listing = subprocess.run([ldconfig, "-p"], capture_output=True, text=True, check=False).stdout
    for line in listing.splitlines():
        name, _, path = line.strip().partition(" => ")
        if name.startswith(libpython_name()):
            yield Path(path).parent


def os_family() -> str:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ""
    return f"{release.get('ID', '')} {release.get('ID_LIKE', '')}"


def libpython_advice(family: str, base_prefix: str) -> str:
    full_version = platform.python_version()
    apt = f"sudo apt-get install libpython{PYTHON}"
    dnf = "sudo dnf install python3-libs"
    rebuild = f"PYTHON_CONFIGURE_OPTS=--enable-shared pyenv install --force {full_version}"
    if "pyenv" in base_prefix:
        advice = [rebuild]
    elif "debian" in family or "ubuntu" in family:
        advice = [apt]
    elif "fedora" in family or "rhel" in family:
        advice = [dnf]
    else:
        advice = [f"{apt}    (Debian, Ubuntu)", f"{dnf}    (Fedora)", f"{rebuild}    (pyenv)"]
    lines = [f"{libpython_name()} is missing: Triton runs its Python models through it.", "Install it with:"]
    return "\n".join(lines + [f"  {line}" for line in advice])


def join_path(first: str, rest: str | None) -> str:
    return f"{first}{os.pathsep}{rest}" if rest else first
