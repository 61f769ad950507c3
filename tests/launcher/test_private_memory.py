"""A program whose files stay its own, whatever the libraries in it would rather have."""

from __future__ import annotations

import stat
import subprocess
import sys
from pathlib import Path

from launcher.private_memory import with_private_memory

# As Boost creates shared memory: fchmod after the file is there, its failure ignored; here also by a child.
PROGRAM = """
import os, subprocess, sys
descriptor = os.open(sys.argv[1], os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
try:
    os.fchmod(descriptor, 0o644)
    print("opened to everybody")
except PermissionError:
    print("refused")
if len(sys.argv) > 2:
    subprocess.run([sys.executable, "-c", sys.argv[2], sys.argv[1] + "-of-child"], check=True)
"""


def test_neither_a_program_nor_its_children_open_their_files_to_others(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "region"), PROGRAM]
    ran = subprocess.run(with_private_memory(command), capture_output=True, text=True, check=True)
    assert ran.stdout.split() == ["refused", "refused"]
    assert ran.stderr == ""
    assert [stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()] == [0o600, 0o600]


def test_without_it_they_would(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PROGRAM, str(tmp_path / "region")]
    assert (
        subprocess.run(command, capture_output=True, text=True, check=True).stdout == "opened to everybody\n"
    )
