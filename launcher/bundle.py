"""What a bundle (deploy/bundle) brings along, where the program was unpacked from one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

# Every bundle has it: the Python that its packages are for.
MARK = "python-version"


@dataclass(frozen=True)
class Bundled:
    """`models` may hold known ones; where `is_bundle`, there is no registry to get them from."""

    models: Path
    is_bundle: bool


def bundled_with(project_root: Path) -> Bundled:
    return Bundled(project_root / "models", (project_root / MARK).is_file())
