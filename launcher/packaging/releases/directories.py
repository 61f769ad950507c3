"""Where the files of releases lie below the state directory, and which of them are one release's."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from router.core.manifest import entry_name

if TYPE_CHECKING:
    from pathlib import Path

    from router.core.manifest import Manifest

# Of what is half made: on the repository's disk, and not inside it, where Triton would take it for a model.
WORK_PREFIX = ".work-"


@dataclass(frozen=True)
class ReleaseDirectories:
    root: Path

    @property
    def repository(self) -> Path:
        return self.root / "repository"

    @property
    def adapters(self) -> Path:
        return self.root / "adapters"

    @property
    def manifests(self) -> Path:
        return self.root / "manifests"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    def make(self) -> None:
        for directory in (self.repository, self.adapters, self.manifests):
            directory.mkdir(parents=True, exist_ok=True)

    def manifest_of(self, manifest: Manifest) -> Path:
        return self.manifests / f"{manifest.name}.json"

    def models_of(self, manifest: Manifest) -> list[Path]:
        """Its directories: Triton models, or an adapter's files.

        What a release cannot own, whatever its description says, is refused.
        """
        if manifest.is_built_in:
            return []
        if manifest.base:
            return [self.adapters / manifest.adapter]
        entry = entry_name(manifest.model, manifest.version)
        for name in manifest.members:
            if "/" in name or not (name == entry or name.startswith(f"{entry}.")):
                raise ValueError(f"{manifest.name} names a Triton model that is not its own: {name!r}")
        return [self.repository / name for name in manifest.members]
