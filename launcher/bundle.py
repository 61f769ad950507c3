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
    """`models` may hold known ones, `wheels` runtimes; where `is_bundle`, no registry has them for us."""

    models: Path
    is_bundle: bool
    wheels: Path


def bundled_with(project_root: Path) -> Bundled:
    is_bundle = (project_root / MARK).is_file()
    return Bundled(project_root / "models", is_bundle, project_root / "wheels")
