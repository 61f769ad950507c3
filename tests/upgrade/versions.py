"""The version before this one, out of the history, and the containers of either."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.compose_file import ROOT, example_environment, interpolated
from launcher.packaging.triton_runtime import find_libpython
from tests.deploy.compose.reading import replaced
from tests.stack.splitting import INFLIGHT, Container

_VERSION = re.compile(r'^version = "([^"]+)"$', re.MULTILINE)


def version_in(project: str) -> str:
    found = _VERSION.search(project)
    assert found is not None
    return found[1]


THIS = version_in((ROOT / "pyproject.toml").read_text())


@dataclass(frozen=True)
class Version:
    """A checkout."""

    root: Path
    name: str

    def container(self, service: str, folder: Path, called: str, *pairs: tuple[str, str]) -> Container:
        """With the command of its own docker-compose.yml, at a test's addresses and paths."""
        program, *words = self._service(service)["command"]
        assert program == "inflight"
        secrets = ("/run/secrets", str(folder / "deploy" / "compose" / "secrets"))
        environment = {"PYTHONPATH": str(self.root), "LD_LIBRARY_PATH": str(find_libpython().parent)}
        command = [*INFLIGHT, *replaced(words, secrets, *pairs)]
        return Container(command, folder, folder / f"{called}.log", environment)

    def _service(self, name: str) -> dict[str, Any]:
        text = (self.root / "docker-compose.yml").read_text()
        found: dict[str, Any] = interpolated(yaml.safe_load(text)["services"][name], example_environment())
        return found


def previous_version(folder: Path) -> Version:
    """The last commit that had another version than this one. It is unpacked there once: kernels that are
    compiled for a place are not used for another."""
    changed = _git("log", "-1", "--format=%H", f'-Sversion = "{THIS}"', "--", "pyproject.toml").strip()
    if not changed:
        pytest.skip("the commit of the version before is not in this checkout")
    commit = _git("rev-parse", f"{changed}^").strip()
    root = folder / commit
    if not root.is_dir():
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True).stdout
        partial = folder / f".{commit}"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        subprocess.run(["tar", "--extract"], cwd=partial, input=archive, check=True)
        partial.rename(root)
    return Version(root, version_in((root / "pyproject.toml").read_text()))


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"there is no history here: {done.stderr.strip()}")
    return done.stdout
