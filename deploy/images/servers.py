"""Stand-ins for the images of PostgreSQL, Redis and Prometheus, of Debian's packages: one root for all three.

Users, places and the way to start are those of the images that docker-compose.yml names, so that its words
for them work. Debian has no Grafana.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from deploy.images.base import stand_in

if TYPE_CHECKING:
    from deploy.images.buildah import Buildah

PACKAGES = ("postgresql", "redis-server", "prometheus", "wget", "ca-certificates")
# As PostgreSQL's own image does at its first start: a database, its user, and a password for others.
POSTGRES = """#!/bin/sh
set -eu
PATH=$(echo /usr/lib/postgresql/*/bin):$PATH
export PATH PGDATA=/var/lib/postgresql/data
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
# uid and gid are those of the images.
SETUP = """
usermod --uid 999 postgres && groupmod --gid 999 postgres
install -d -o 999 -g 999 -m 700 /var/lib/postgresql/data
install -d -o 65534 -g 65534 /prometheus
ln -s /usr/lib/postgresql/*/bin/pg_isready /usr/local/bin/pg_isready
chmod 755 /usr/local/bin/start-postgres /etc/redis /etc/prometheus
rm -rf /var/lib/postgresql/[0-9]* /var/lib/redis /var/lib/prometheus /usr/share/doc /usr/share/man
"""
# As PostgreSQL's image has it: from its second start on a tmpfs has the mode of the place it is mounted at.
# By itself, because mmdebstrap leaves nothing in /run.
SOCKETS = ("install", "-d", "-o", "999", "-g", "999", "-m", "3777", "/run/postgresql")
RECIPE = (PACKAGES, POSTGRES, SETUP)
ROOT = stand_in("servers", *RECIPE)
STARTED_BY = {
    "POSTGRES_IMAGE": (stand_in("postgres", *RECIPE, SOCKETS), "/usr/local/bin/start-postgres"),
    "REDIS_IMAGE": (stand_in("redis", *RECIPE), ""),
    "PROMETHEUS_IMAGE": (stand_in("prometheus", *RECIPE), "/usr/bin/prometheus"),
}


def make_servers(buildah: Buildah) -> dict[str, str]:
    """The images by the variables that name them in docker-compose.yml; those that are there are kept."""
    named = {variable: image for variable, (image, _) in STARTED_BY.items()}
    there = set(buildah.ask("images", "--format", "{{.Name}}:{{.Tag}}").split())
    if set(named.values()) <= there:
        return named
    if ROOT not in there:
        _make_root(buildah)
    for image, start in STARTED_BY.values():
        entry = ("config", "--entrypoint", f'["{start}"]' if start else "[]", "{}")
        _commit(buildah, ROOT, image, ("run", "--isolation=chroot", "{}", "--", *SOCKETS), entry)
    return named


def _make_root(buildah: Buildah) -> None:
    with tempfile.TemporaryDirectory(prefix="inflight-servers-") as folder:
        system, script = Path(folder, "system.tar"), Path(folder, "start-postgres")
        script.write_text(POSTGRES)
        script.chmod(0o755)
        hooks = (f"upload {script} /usr/local/bin/start-postgres", f'chroot "$1" sh -euc {_quoted(SETUP)}')
        command = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
        command += [f"--customize-hook={hook}" for hook in hooks]
        subprocess.run([*command, "bookworm", str(system)], check=True)
        _commit(buildah, "scratch", ROOT, ("add", "--quiet", "{}", system, "/"))


def _commit(buildah: Buildah, base: str, image: str, *changes: tuple[str | Path, ...]) -> None:
    """One image from another; `{}` stands for the container that is changed."""
    container = buildah.ask("from", base)
    try:
        for change in changes:
            buildah.ask(*(container if word == "{}" else word for word in change))
        buildah.ask("commit", "--quiet", container, image)
    finally:
        buildah.ask("rm", container)


def _quoted(script: str) -> str:
    return "'" + script.strip() + "'"
