"""Builds the images of docker-compose.yml without Docker, and says what is in them: python -m deploy.images.

By buildah, in a chroot, as root, on Debian: `apt-get install buildah mmdebstrap`. Unless an image of Python
is named, a stand-in for the official one is made of Debian's packages and this machine's CPython 3.12.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from deploy.images.base import make_stand_in
from deploy.images.buildah import Buildah
from deploy.images.serving import ask_for_a_chat
from tests.deploy.compose.reading import compose

BUILT_HERE = ("router", "triton-cpu", "locust")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", choices=BUILT_HERE, help="a service; may be repeated")
    parser.add_argument(
        "--into", type=Path, default=Path("dist/images"), help="for lists of parts, and figures"
    )
    parser.add_argument("--python-image", default="", help="the base; made here where none is named")
    parser.add_argument(
        "--python", type=Path, default=None, help="prefix of a CPython 3.12, for the stand-in"
    )
    parser.add_argument("--no-chat", action="store_true", help="do not start them")
    told = parser.parse_args()
    told.into.mkdir(parents=True, exist_ok=True)
    buildah = Buildah()
    base = told.python_image or make_stand_in(buildah, told.python)
    services = compose()["services"]
    figures = {}
    for name in told.only or BUILT_HERE:
        built = buildah.build(services[name], {"PYTHON_IMAGE": base})
        figures[name] = buildah.describe(built, told.into / f"{name}.cdx.json")
        print(f"{name}: {json.dumps(figures[name])}", flush=True)
    if not told.no_chat and {"router", "triton-cpu"} <= figures.keys():
        figures["chat"] = ask_for_a_chat(buildah, services)
        print(f"chat: {json.dumps(figures['chat'])}")
    (told.into / "figures.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
