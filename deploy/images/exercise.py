"""What the built images do together: a chat, a canary, and each container restarted under load."""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from deploy.images.containers import Containers, Failed, opened
from deploy.images.gpu import try_gpu_image
from deploy.images.load import ANSWERED, CONNECT_TIMEOUT_S, CUT, REFUSED, Load
from router.settings import Options

if TYPE_CHECKING:
    from collections.abc import Mapping

PORTS = ("INFLIGHT_HTTP_PORT", "INFLIGHT_GRPC_PORT", "PROMETHEUS_PORT", "LOCUST_PORT")
NEEDED = ("postgres", "redis", "triton-cpu", "router")
ORDER = (*NEEDED, "prometheus")
# What the docs promise while one of them restarts: what is not here goes on as if nothing happened.
MAY_REFUSE = frozenset({"router", "triton-cpu"})
# For so long answers that have begun wait for the only Triton.
REVIVE_WAIT_S = Options().revive_wait_s
SCRAPED = {"inflight-router", "inflight-triton"}
SCRAPED_WITHIN_S = 600.0
ANSWERED_WITHIN_S = 1200.0
CANARY_WITHIN_S = 3600.0
TOLD_WITHIN_S = 60.0
SETTLED_CHATS = 8


def exercise(name: str, model: Path, servers: Mapping[str, str], *, whole: bool = True) -> dict[str, Any]:
    """With a model of this machine, a folder or a .gguf file, as docs/deploy.md mounts it. Raises Failed.

    Whole or not, a chat is answered and Locust's page is there; the whole of it is Prometheus, restarts, the
    canary, and the image for GPUs as well.
    """
    with tempfile.TemporaryDirectory(prefix="inflight-models-") as folder:
        copy = readable_copy(name, model, Path(folder))
        figures = _exercise(name, copy, settings_for(copy, servers), whole=whole)
        if whole:
            figures["gpu_image"] = try_gpu_image(name, settings_for(copy, servers))
        return figures


def settings_for(model: Path, servers: Mapping[str, str]) -> dict[str, str]:
    return {
        **servers,
        **free_ports(),
        "COMPOSE_PROFILES": "cpu",
        "INFLIGHT_MODELS": str(model.parent),
        "INFLIGHT_MODEL": f"/models/{model.name}",
        "INFLIGHT_EMBEDDINGS": "",
    }


def readable_copy(name: str, model: Path, folder: Path) -> Path:
    """Containers have users of their own, and models are often for their owner alone."""
    if model.is_file():
        copy = Path(shutil.copyfile(model, folder / f"{name}{model.suffix}"))
    else:
        copy = Path(shutil.copytree(model, folder / name))
    for path in (folder, copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return copy


def _exercise(name: str, model: Path, settings: Mapping[str, str], *, whole: bool) -> dict[str, Any]:
    with opened(settings) as containers, ExitStack() as closing:
        began_s = time.monotonic()
        containers.up(*(ORDER if whole else NEEDED), "locust")
        containers.wait_healthy("router")
        figures: dict[str, Any] = {"ready_after_s": round(time.monotonic() - began_s, 1)}
        print(f"all containers are up: {figures['ready_after_s']} s", flush=True)
        load = Load(containers.url("router"), containers.secret("admin_key"), name)
        closing.callback(load.close)
        how, answer = load.ask()
        if how != ANSWERED:
            raise Failed(f"a chat was {how}: {answer}\n{containers.log('router')[-4000:]}")
        print(f"a chat is answered: {answer!r}", flush=True)
        figures["answered"] = answer
        look_at_locust(containers)
        if whole:
            for each in ORDER:
                containers.wait_healthy(each)
            wait_scraped(containers)
            with load.running():
                figures["restarts"] = {each: restart(containers, load, each) for each in ORDER}
                figures["canary"] = canary(containers, load, name, f"/models/{model.name}")
        return figures


def free_ports() -> dict[str, str]:
    """On this host, where the usual ones may be taken."""
    with ExitStack() as closing:
        taken = [closing.enter_context(socket.socket()) for _ in PORTS]
        for each in taken:
            each.bind(("127.0.0.1", 0))
        return {name: str(each.getsockname()[1]) for name, each in zip(PORTS, taken, strict=True)}


def restart(containers: Containers, load: Load, name: str) -> dict[str, Any]:
    """How chats ended from before it stopped until they are answered again."""
    settle(containers, load, SETTLED_CHATS)
    before, told, began_s = load.counts(), len(load.reasons), time.monotonic()
    containers.restart(name)
    containers.wait_healthy(name)
    back_s = time.monotonic() - began_s
    settle(containers, load, 1)
    away_s = time.monotonic() - began_s  # routers look at it once more before they send it anything
    time.sleep(CONNECT_TIMEOUT_S)  # so that whoever was not let in belongs to this restart
    settle(containers, load, SETTLED_CHATS)
    ended = load.counts() - before
    if ended.keys() - allowed_endings(name, away_s):
        said = "\n".join(load.reasons[told:][:5])
        when = f"healthy after {back_s:.1f} s, chats answered again after {away_s:.1f} s"
        raise Failed(f"{name} was restarted, {when}: {dict(ended)}\n{said}")
    print(f"{name} restarted: {back_s:.1f} s, {dict(ended)}", flush=True)
    return {"back_after_s": round(back_s, 1), **ended}


def allowed_endings(name: str, away_s: float) -> set[str]:
    allowed = {ANSWERED, REFUSED} if name in MAY_REFUSE else {ANSWERED}
    return {*allowed, CUT} if name == "triton-cpu" and away_s > REVIVE_WAIT_S else allowed


def settle(containers: Containers, load: Load, chats: int) -> None:
    answered = load.counts()[ANSWERED]
    containers.wait(
        lambda: load.counts()[ANSWERED] >= answered + chats,
        "chats are answered",
        ANSWERED_WITHIN_S,
        "router",
        "triton-cpu",
    )


def canary(containers: Containers, load: Load, model: str, source: str) -> dict[str, Any]:
    """A second release, added in Triton's image, takes over by steps; nobody's chat fails for it."""
    before, began_s = load.counts(), time.monotonic()
    containers.once("release-cpu", "add", model, source, "--set", "max_tokens_in_paged_kv_cache=4096")
    added_s = time.monotonic() - began_s
    plan = (
        "--steps",
        "50%,100%",
        "--min-requests",
        "20",
        "--min-duration",
        "5s",
        "--tolerance",
        "error_margin=20%",
    )
    containers.inside("router", "inflight", "release", "canary", f"{model}@2", *plan)
    containers.wait(
        lambda: has_taken_over(containers, model, 2), "the canary has taken over", CANARY_WITHIN_S, "router"
    )
    ended = load.counts() - before
    if ended.keys() - {ANSWERED}:
        raise Failed(f"during the canary: {dict(ended)}\n" + "\n".join(load.reasons[-5:]))
    took_s = time.monotonic() - began_s
    print(f"canary: {took_s:.1f} s, {dict(ended)}", flush=True)
    return {"added_s": round(added_s, 1), "took_s": round(took_s, 1), **ended}


def has_taken_over(containers: Containers, model: str, version: int) -> bool:
    """Asked over HTTP, because a command takes its time from those that serve."""
    address = f"{containers.url('router')}/admin/releases/{model}"
    headers = {"Authorization": f"Bearer {containers.secret('admin_key')}"}
    found = httpx.get(address, headers=headers, timeout=TOLD_WITHIN_S, trust_env=False).json()
    if found["rollout"] is not None:
        return False
    shares = {each["version"]: each["share"] for each in found["releases"]}
    if shares[version] != 1:
        raise Failed(f"the canary was rolled back: {json.dumps(found)}\n{containers.log('router')[-4000:]}")
    return True


def wait_scraped(containers: Containers) -> None:
    """Prometheus reads router and Triton, with its key and by their names."""
    query = f"{containers.url('prometheus')}/api/v1/query"
    who = ("inflight", containers.secret("prometheus_password"))

    def is_scraped() -> bool:
        answer = httpx.get(query, params={"query": "up == 1"}, auth=who, trust_env=False)
        return {each["metric"]["job"] for each in answer.json()["data"]["result"]} >= SCRAPED

    containers.wait(is_scraped, "Prometheus reads router and Triton", SCRAPED_WITHIN_S, "prometheus")


def look_at_locust(containers: Containers) -> None:
    containers.wait_healthy("locust")
    who = ("inflight", containers.secret("locust_password"))
    page = httpx.get(containers.url("locust"), auth=who, trust_env=False)
    if page.status_code != httpx.codes.OK:
        raise Failed(f"Locust's page: {page.status_code}\n{containers.log('locust')[-2000:]}")
