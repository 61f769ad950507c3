"""docker-compose.yml's services as podman's words: what Docker would give a container, read from the file."""

from __future__ import annotations

import json
import re
import resource
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

# podman's own are more than whoever runs it may be allowed.
USUAL = {"nofile": 65536, "nproc": 30000}
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m(?!s))?(?:(\d+)s)?")
# What is translated below, or means nothing to a container that runs.
KNOWN = frozenset(
    {
        *("build", "image", "profiles", "depends_on", "logging", "command", "entrypoint", "environment"),
        *(
            "read_only",
            "cap_drop",
            "security_opt",
            "init",
            "user",
            "working_dir",
            "secrets",
            "volumes",
            "tmpfs",
        ),
        *("shm_size", "ulimits", "pids_limit", "healthcheck", "stop_grace_period", "stop_signal", "networks"),
        *("ports", "deploy", "restart"),
    }
)


@dataclass(frozen=True)
class Health:
    """A health check, to be run inside: podman leaves that to systemd, which not every machine has."""

    words: list[str]
    every_s: int  # while it starts
    patience_s: int  # until Docker would call it unhealthy


@dataclass(frozen=True)
class Project:
    """A checkout as `docker compose` would find it: the file's paths begin in `folder`."""

    name: str
    folder: Path
    compose: Mapping[str, Any]

    def service(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.compose["services"][name]
        if strange := found.keys() - KNOWN:
            raise SystemExit(
                f"{name} has {', '.join(sorted(strange))}, which cannot be translated for podman"
            )
        return found

    def image(self, name: str) -> str:
        """One that is built here is called as buildah calls it."""
        service = self.service(name)
        return f"localhost/{service['image']}" if "build" in service else str(service["image"])

    def run_words(self, name: str, command: tuple[str, ...] = (), *, detached: bool = True) -> list[str]:
        """Behind `podman run`; another command is for services that are started once."""
        service = self.service(name)
        kept = ["--detach", f"--name={self.name}-{name}", *_life(service)] if detached else ["--rm"]
        words = [
            *kept,
            *_rights(service),
            *_sizes(service),
            *self._files(service),
            *self._network(name, service),
        ]
        words += [f"--env={key}={value}" for key, value in service.get("environment", {}).items()]
        if "working_dir" in service:
            words.append(f"--workdir={service['working_dir']}")
        if "entrypoint" in service:
            words.append(f"--entrypoint={json.dumps(service['entrypoint'])}")
        return [*words, self.image(name), *(command or service.get("command", ()))]

    def health(self, name: str) -> Health:
        check = self.service(name)["healthcheck"]
        kind, *words = check["test"]
        interval_s = seconds(check["interval"])
        return Health(
            ["sh", "-c", *words] if kind == "CMD-SHELL" else list(words),
            seconds(check.get("start_interval", check["interval"])),
            seconds(check["start_period"]) + check["retries"] * interval_s,
        )

    def _files(self, service: Mapping[str, Any]) -> Iterator[str]:
        for mount in service.get("volumes", ()):
            source, rest = mount.split(":", 1)
            place = self.folder / source if source[0] in "./" else f"{self.name}_{source}"
            yield f"--volume={place}:{rest}"
        for secret in service.get("secrets", ()):
            file = self.folder / self.compose["secrets"][secret]["file"]
            yield f"--volume={file}:/run/secrets/{secret}:ro"
        for mount in service.get("tmpfs", ()):
            yield f"--tmpfs={tmpfs(mount)}"

    def _network(self, name: str, service: Mapping[str, Any]) -> Iterator[str]:
        networks = service.get("networks", ())
        for network in networks:
            told = (networks[network] if isinstance(networks, dict) else None) or {}
            aliases = "".join(f",alias={alias}" for alias in told.get("aliases", ()))
            yield f"--network={self.name}_{network}:alias={name}{aliases}"
        for port in service.get("ports", ()):
            yield f"--publish={port}"


def _life(service: Mapping[str, Any]) -> Iterator[str]:
    yield f"--restart={service['restart']}"
    yield f"--stop-timeout={seconds(service['stop_grace_period'])}"
    if "stop_signal" in service:
        yield f"--stop-signal={service['stop_signal']}"


def _rights(service: Mapping[str, Any]) -> Iterator[str]:
    yield f"--user={service['user']}"
    if service["read_only"]:
        yield from ("--read-only", "--read-only-tmpfs=false")
    if service["init"]:
        yield "--init"
    yield from (f"--cap-drop={each}" for each in service["cap_drop"])
    yield from (f"--security-opt={each.removesuffix(':true')}" for each in service["security_opt"])


def _sizes(service: Mapping[str, Any]) -> Iterator[str]:
    limits = service.get("deploy", {}).get("resources", {}).get("limits", {})
    if "memory" in limits:
        yield f"--memory={limits['memory'].removesuffix('b')}"
    if float(limits.get("cpus", 0)):
        yield f"--cpus={limits['cpus']}"
    if "shm_size" in service:
        yield f"--shm-size={service['shm_size'].removesuffix('b')}"
    yield f"--pids-limit={service['pids_limit']}"
    yield from ulimits(service.get("ulimits", {}))


def ulimits(wanted: Mapping[str, Any]) -> Iterator[str]:
    for name, limit in {**USUAL, **wanted}.items():
        soft, hard = (limit["soft"], limit["hard"]) if isinstance(limit, dict) else (limit, limit)
        yield f"--ulimit={name}={allowed(name, soft)}:{allowed(name, hard)}"


def allowed(name: str, wanted: int) -> int:
    """As much of it as this process could give itself; -1 is no limit, for Docker and for the kernel."""
    most = resource.getrlimit(getattr(resource, f"RLIMIT_{name.upper()}"))[1]
    if most == resource.RLIM_INFINITY:
        return wanted
    return most if wanted == resource.RLIM_INFINITY else min(wanted, most)


def tmpfs(mount: str) -> str:
    """podman 4 cannot say whose it is: then it is everybody's, as /tmp is."""
    place, _, told = mount.partition(":")
    options = told.split(",") if told else []
    kept = [each for each in options if not each.startswith(("uid=", "gid="))]
    if kept != options:
        kept = [*(each for each in kept if not each.startswith("mode=")), "mode=1777"]
    return ":".join(filter(None, (place, ",".join(kept))))


def seconds(duration: str) -> int:
    found = _DURATION.fullmatch(duration)
    if found is None or not duration:
        raise ValueError(f"{duration!r} is not a duration such as 90s, 5m or 1h")
    hours, minutes, rest = (int(each or 0) for each in found.groups())
    return hours * 3600 + minutes * 60 + rest
