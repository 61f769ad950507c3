"""Builds the images of docker-compose.yml without Docker, and says what is in them: python -m deploy.images.

By buildah, in a chroot, as root, on Debian: `apt-get install buildah`. Unless an image of Python
is named, a stand-in for the official one is made of Debian's packages and this machine's CPython 3.12. With
--serve they are run as well, by podman, beside PostgreSQL, Redis and Prometheus of Debian's packages.
"""

from __future__ import annotations

import argparse
import json
import time
from math import inf
from pathlib import Path
from typing import Any

from deploy.compose_file import compose
from deploy.images.base import make_gpu_base, make_stand_in
from deploy.images.buildah import Buildah
from deploy.images.containers import Failed
from deploy.images.exercise import exercise
from deploy.images.page import write_page
from deploy.images.servers import make_servers
from launcher.console import StackConsole
from launcher.packaging.models.checkpoint import resolve_checkpoint
from launcher.settings import StackSettings

ON_PYTHON = ("router", "triton-cpu", "locust")
BUILT_HERE = (*ON_PYTHON, "triton")
MOST_MB = {"router": 250}  # to pull


def main() -> None:
    told = options()
    told.into.mkdir(parents=True, exist_ok=True)
    buildah = Buildah()
    kept = told.into / "figures.json"
    figures: dict[str, Any] = json.loads(kept.read_text()) if kept.is_file() else {"images": {}}
    if not told.no_build:
        base = told.python_image or make_stand_in(buildah, told.python)
        for name in told.only or BUILT_HERE:
            before = figures["images"].get(name, {})
            figures["images"][name] = built(buildah, name, base, told.into, before)
            kept.write_text(json.dumps(figures, indent=2) + "\n")
    if told.serve:
        model = resolve_checkpoint(told.model, StackSettings().data_dir, StackConsole())
        try:
            figures["serving"] = exercise(model.name, model.model_path, make_servers(buildah))
        except Failed as failed:
            raise SystemExit(str(failed)) from None
        kept.write_text(json.dumps(figures, indent=2) + "\n")
    if told.write_page:
        write_page(figures)


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", choices=BUILT_HERE, help="a service; may be repeated")
    parser.add_argument(
        "--into", type=Path, default=Path("dist/images"), help="for bills of materials, and figures"
    )
    parser.add_argument("--python-image", default="", help="the base image; made here if none is named")
    parser.add_argument(
        "--python", type=Path, default=None, help="prefix of a CPython 3.12, for the stand-in base"
    )
    parser.add_argument("--no-build", action="store_true", help="use the images that exist")
    parser.add_argument("--serve", action="store_true", help="run them: chats, restarts, a canary")
    parser.add_argument("--model", default=StackSettings().model, help="the model to serve")
    parser.add_argument("--write-page", action="store_true", help="the figures go to docs/deploy.md")
    return parser.parse_args()


def built(
    buildah: Buildah, name: str, python_image: str, into: Path, before: dict[str, Any]
) -> dict[str, Any]:
    """Figures of an image that is the same as before are those of before: it took as long as it took."""
    base = make_gpu_base(buildah, python_image) if name == "triton" else python_image
    began_s = time.monotonic()
    image = buildah.build(compose()["services"][name], {"PYTHON_IMAGE": base, "BASE": base})
    took_s = time.monotonic() - began_s
    if before.get("id") == buildah.id_of(image):
        return before
    described = buildah.describe(image, into / f"{name}.cdx.json")
    figures = {"id": buildah.id_of(image), "built_in_s": round(took_s, 1), **described}
    print(f"{name}: {json.dumps(figures)}", flush=True)
    if described["packed_mb"] > MOST_MB.get(name, inf):
        raise SystemExit(f"{name} has {described['packed_mb']} MB to pull; the limit is {MOST_MB[name]}")
    return figures


if __name__ == "__main__":
    main()
