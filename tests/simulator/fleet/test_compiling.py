"""Where the compiled simulator is kept: never where that of other sources could be found."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from simulator.fleet import compiling
from tests.pace import patience

SCRIPT = "from simulator.fleet.choice import least_loaded; print(least_loaded.stats.cache_path)"


def cache_path_in(folder: Path, kept: Path) -> Path:
    ended = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        cwd=folder,
        env=os.environ | {"NUMBA_CACHE_DIR": str(kept), "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        timeout=patience(60),
        check=True,
    )
    return Path(ended.stdout.strip())


def test_a_copy_of_the_sources_finds_what_was_compiled_unless_it_was_changed(
    tmp_path: Path,
) -> None:
    root = Path(compiling.__file__).parents[2]
    for name in ("simulator", "python_backend", "router", "loadtest"):
        shutil.copytree(root / name, tmp_path / name)
    same = cache_path_in(tmp_path, tmp_path / "kept")
    assert same == tmp_path / "kept" / compiling._fingerprint()
    with (tmp_path / "simulator/fleet/turns.py").open("a") as source:
        source.write("# changed\n")
    changed = cache_path_in(tmp_path, tmp_path / "kept")
    assert changed != same
    assert changed.parent == same.parent
    pace = tmp_path / "python_backend/engine/scheduling/pace.py"
    pace.write_text(pace.read_text().replace("STEP_STRETCH = 2.5", "STEP_STRETCH = 2.6"))
    assert cache_path_in(tmp_path, tmp_path / "kept") not in (same, changed)
