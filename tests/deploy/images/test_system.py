"""The root that images are built on here: whole packages with all they need, and no documentation."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from deploy.images.system import kept, names_in, with_needs, write_system


def test_packages_are_named_without_versions_and_with_all_alternatives() -> None:
    depends = "libc6 (>= 2.34), , libgcc-s1:any, debconf (>= 0.5) | debconf-2.0, libstdc++6"
    assert names_in(depends) == ["libc6", "libgcc-s1", "debconf", "debconf-2.0", "libstdc++6"]


def test_what_a_package_needs_comes_with_it_as_far_as_it_is_installed() -> None:
    needs = {"a": ["b", "virtual"], "b": ["a", "c"], "c": [], "d": ["a"]}
    assert with_needs(["a"], needs) == {"a", "b", "c"}


def test_files_are_called_by_their_real_places_and_documentation_is_left_out() -> None:
    listed = ["/.", "/bin", "/bin/sh", "/usr/bin/sh", "/usr/share/doc/dash/copyright", "/no/such/file"]
    listed += ["package diverts others to: /bin/sh.distrib"]
    assert kept(listed) == {"/bin", "/usr/bin/sh"}


def test_a_root_has_a_shell_and_the_libraries_that_are_asked_for(tmp_path: Path) -> None:
    if not Path("/var/lib/dpkg/status").exists():
        pytest.skip("this machine is no Debian")
    write_system(["zlib1g"], tmp_path / "system.tar")
    with tarfile.open(tmp_path / "system.tar") as archive:
        names = set(archive.getnames())
    assert {"bin", "usr/bin/sh", "usr/bin/env", "tmp"} <= names
    assert any(name.endswith("/libz.so.1") for name in names)


def test_a_package_that_this_machine_lacks_is_named(tmp_path: Path) -> None:
    if not Path("/var/lib/dpkg/status").exists():
        pytest.skip("this machine is no Debian")
    with pytest.raises(SystemExit, match="apt-get install no-such-package"):
        write_system(["no-such-package"], tmp_path / "system.tar")
