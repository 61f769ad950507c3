"""buildah's commands, as far as they are needed here."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.images.sources import LABEL, mark_of_sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# pip inside trusts whom this machine trusts; one in a virtual environment has to be told.
TRUSTED = "/etc/ssl/certs"
PIP_SETTINGS = f"[global]\ncert = {TRUSTED}/ca-certificates.crt\n"
PARTS = "opt/inflight/sbom.cdx.json"


class Buildah:
    def __init__(self) -> None:
        if shutil.which("buildah") is None:
            raise SystemExit("buildah is missing: apt-get install buildah mmdebstrap")

        self._settings = tempfile.NamedTemporaryFile("w", prefix="inflight-pip-", suffix=".conf")  # noqa: SIM115
        self._settings.write(PIP_SETTINGS)
        self._settings.flush()
        Path(self._settings.name).chmod(0o644)

    @property
    def authorities(self) -> list[str]:
        return [f"--volume={TRUSTED}:{TRUSTED}:ro", f"--volume={self._settings.name}:/etc/pip.conf:ro"]

    def ask(self, *words: str | Path) -> str:
        return subprocess.run(
            ["buildah", *words], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()

    def build(self, service: Mapping[str, Any], arguments: Mapping[str, str]) -> str:
        """An image of docker-compose.yml, under the name that it has there."""
        build, image = service["build"], f"localhost/{service['image']}"
        given = [
            f"--build-arg={name}={arguments[name]}" for name in build.get("args", {}) if name in arguments
        ]
        target = ["--target", build["target"]] if "target" in build else []
        # Layers that nothing has changed for are used again: packages while their versions are the same.
        label = f"--label={LABEL}={mark_of_sources()}"
        where = ["--isolation=chroot", label, "--layers", "--pull-never", *self.authorities, "--quiet"]
        self.ask("bud", *where, *given, *target, "-f", build["dockerfile"], "-t", image, build["context"])
        return image

    def describe(self, image: str, parts_into: Path) -> dict[str, Any]:
        """Sizes in MB, unpacked and as a registry keeps it, the digest, and its list of parts."""
        began_s = time.monotonic()
        with self.container(image) as (_, root):
            unpacked = subprocess.run(
                ["du", "-sm", root], check=True, stdout=subprocess.PIPE, text=True
            ).stdout
            shutil.copyfile(root / PARTS, parts_into)
            parts = json.loads(parts_into.read_text())["components"]
        with tempfile.TemporaryDirectory(prefix="inflight-image-") as folder:
            self.ask("push", "-q", "--digestfile", f"{folder}/digest", image, f"dir:{folder}/pushed")
            packed = sum(path.stat().st_size for path in Path(folder, "pushed").iterdir())
            digest = Path(folder, "digest").read_text().strip()
        return {
            "unpacked_mb": int(unpacked.split()[0]),
            "packed_mb": round(packed / 1e6),
            "packages": len(parts),
            "digest": digest,
            "described_in_s": round(time.monotonic() - began_s, 1),
        }

    @contextmanager
    def container(self, image: str) -> Iterator[tuple[str, Path]]:
        """Its name, and where its files are."""
        name = self.ask("from", "--pull-never", image)
        try:
            yield name, Path(self.ask("mount", name))
        finally:
            self.ask("rm", name)
