"""A stand-in for the images of PostgreSQL, Redis and Prometheus: this machine's, of Debian's packages.

It has the users, places and ways to start of the images that docker-compose.yml names, so that its words for
them work. The programs are in this machine's /usr, which is mounted. Debian has no Grafana.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deploy.images.base import stand_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploy.images.buildah import Buildah

# Each with a file that it has.
PACKAGES = {
    "postgresql": "/usr/share/postgresql",
    "redis-server": "/usr/bin/redis-server",
    "prometheus": "/usr/bin/prometheus",
    "wget": "/usr/bin/wget",
}
PROGRAMS = "/usr:/usr:ro"
# The images of Redis and Prometheus are told a command, and options. PostgreSQL's is told nothing: when it is
# first started it makes a database, its user, and a password for others.
START = """#!/bin/sh
set -eu
case ${1:-} in
    --*) exec prometheus "$@" ;;
    ?*) exec "$@" ;;
esac
export PGDATA=/var/lib/postgresql/data
if [ ! -s "$PGDATA/PG_VERSION" ]; then
    initdb --username="$POSTGRES_USER" --pwfile="$POSTGRES_PASSWORD_FILE" --auth-local=trust \\
        --auth-host=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8
    echo 'host all all all scram-sha-256' >> "$PGDATA/pg_hba.conf"
    pg_ctl --wait start --options='-c listen_addresses='
    createdb --username="$POSTGRES_USER" "$POSTGRES_DB"
    pg_ctl --wait stop
fi
exec postgres -c listen_addresses='*'
"""
USERS = """root:x:0:0::/:/bin/sh
postgres:x:999:999::/var/lib/postgresql:/bin/sh
nobody:x:65534:65534::/:/bin/sh
"""
FILES = {"start": START, "etc/passwd": USERS}
LINKS = {"bin": "usr/bin", "sbin": "usr/sbin", "lib": "usr/lib", "lib64": "usr/lib64", "var/run": "/run"}
# Whose, and their mode. From its second start on a tmpfs has the mode of the place it is mounted at.
PLACES = {
    **dict.fromkeys(("usr", "etc/redis", "etc/prometheus", "proc", "sys", "dev", "run"), (0, 0o755)),
    "tmp": (0, 0o1777),
    "run/postgresql": (999, 0o3777),
    "var/lib/postgresql/data": (999, 0o700),
    "prometheus": (65534, 0o755),
}
IMAGE = stand_in("servers", FILES, LINKS, PLACES)
VARIABLES = ("POSTGRES_IMAGE", "REDIS_IMAGE", "PROMETHEUS_IMAGE")


def make_servers(buildah: Buildah) -> dict[str, str]:
    """The image by the variables that name it in docker-compose.yml; one that is there is kept."""
    if missing := [name for name, file in PACKAGES.items() if not Path(file).exists()]:
        raise SystemExit(f"missing on this machine: apt-get install {' '.join(missing)}")
    if not buildah.has(IMAGE):
        path = ":".join((*map(str, Path("/usr/lib/postgresql").glob("*/bin")), "/usr/bin", "/usr/sbin"))
        with tempfile.TemporaryDirectory(prefix="inflight-servers-") as folder:
            system = Path(folder, "system.tar")
            write_system(system)
            with buildah.changed("scratch", IMAGE) as container:
                buildah.ask("add", "--quiet", container, system, "/")
                buildah.ask("config", "--entrypoint", '["/start"]', "--env", f"PATH={path}", container)
    return dict.fromkeys(VARIABLES, IMAGE)


def write_system(into: Path) -> None:
    with tarfile.open(into, "w") as archive:
        for name, (owner, mode) in PLACES.items():
            place = tarfile.TarInfo(name)
            place.type, place.mode, place.uid, place.gid = tarfile.DIRTYPE, mode, owner, owner
            archive.addfile(place)
        for name, target in LINKS.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        for name, text in FILES.items():
            file = tarfile.TarInfo(name)
            file.size, file.mode = len(text), 0o755
            archive.addfile(file, io.BytesIO(text.encode()))


def with_programs(compose: dict[str, Any]) -> Mapping[str, Any]:
    """docker-compose.yml, where this image is called, with this machine's programs in it."""
    for service in compose["services"].values():
        if service["image"] == IMAGE:
            service["volumes"] = [*service.get("volumes", ()), PROGRAMS]
    return compose
