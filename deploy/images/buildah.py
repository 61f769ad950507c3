"""buildah's commands, as far as they are needed here."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.images.sources import LABEL, mark_of_sources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# pip and uv inside trust whom this machine trusts, and have to be told.
TRUSTED = "/etc/ssl/certs"
SETTINGS = {
    "/etc/pip.conf": f"[global]\ncert = {TRUSTED}/ca-certificates.crt\n",
    "/etc/uv/uv.toml": "system-certs = true\n",
}
PARTS = "opt/inflight/sbom.cdx.json"


class Buildah:
    def __init__(self) -> None:
        if shutil.which("buildah") is None:
            raise SystemExit("buildah is missing: apt-get install buildah")

    @contextmanager
    def authorities(self) -> Iterator[list[str]]:
        """Whom this machine trusts, as options of a command that runs others inside."""
        with tempfile.TemporaryDirectory(prefix="inflight-settings-") as folder:
            mounted = {TRUSTED: Path(TRUSTED)}
            for place, text in SETTINGS.items():
                mounted[place] = Path(folder, Path(place).name)
                mounted[place].write_text(text)
            yield [f"--volume={file}:{place}:ro" for place, file in mounted.items()]

    def ask(self, *words: str | Path) -> str:
        return subprocess.run(
            ["buildah", *words], check=True, stdout=subprocess.PIPE, text=True
        ).stdout.strip()

    def has(self, image: str) -> bool:
        return image in self.ask("images", "--format", "{{.Name}}:{{.Tag}}").split()

    def build(self, service: Mapping[str, Any], arguments: Mapping[str, str]) -> str:
        """An image of docker-compose.yml, under its name there; one of the same sources is kept."""
        build, image = service["build"], f"localhost/{service['image']}"
        given = [
            f"--build-arg={name}={arguments[name]}" for name in build.get("args", {}) if name in arguments
        ]
        mark = mark_of_sources(*given)
        if self._mark_of(image) == mark:
            return image
        target = ["--target", build["target"]] if "target" in build else []
        # Layers that nothing has changed for are used again: packages while their versions are the same.
        where = ["--isolation=chroot", f"--label={LABEL}={mark}", "--layers", "--pull-never", "--quiet"]
        words = [*where, *given, *target, "-f", build["dockerfile"], "-t", image]
        with self.authorities() as trusted:
            self.ask("bud", *words, *trusted, build["context"])
        return image

    def id_of(self, image: str) -> str:
        return self._inspect(image, "{{.FromImageID}}")

    def describe(self, image: str, parts_into: Path) -> dict[str, Any]:
        """Sizes in MB, unpacked and as a registry keeps it, the digest, and its list of parts."""
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
        }

    @contextmanager
    def container(self, image: str) -> Iterator[tuple[str, Path]]:
        """Its name, and where its files are."""
        name = self.ask("from", "--pull-never", image)
        try:
            yield name, Path(self.ask("mount", name))
        finally:
            self.ask("rm", name)

    @contextmanager
    def changed(self, base: str, image: str) -> Iterator[str]:
        """A container of the first, which is committed as the second."""
        name = self.ask("from", "--pull-never", base)
        try:
            yield name
            self.ask("commit", "--quiet", name, image)
        finally:
            self.ask("rm", name)

    def _mark_of(self, image: str) -> str | None:
        label = f'--format={{{{index .OCIv1.Config.Labels "{LABEL}"}}}}'
        words = ["buildah", "inspect", "--type=image", label, image]
        found = subprocess.run(words, check=False, capture_output=True, text=True)
        return None if found.returncode else found.stdout.strip()

    def _inspect(self, image: str, template: str) -> str:
        return self.ask("inspect", "--type=image", f"--format={template}", image)
