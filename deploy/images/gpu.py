"""The image for GPUs on a machine without one: how far its container comes, by the words of the file."""

from __future__ import annotations

import time
from contextlib import closing
from typing import TYPE_CHECKING, Any

from deploy.images.containers import Failed, opened
from deploy.images.load import ANSWERED, Load

if TYPE_CHECKING:
    from collections.abc import Mapping

    from deploy.images.containers import Containers

NAME = "triton"
OTHERS = ("postgres", "redis", "router")
SETTINGS = "deploy/compose/inflight.toml"
REFUSAL = "no NVIDIA GPU is visible to this process"
# Tokens are made up: all but the computing is as with a GPU.
WITHOUT_GPU = '\n[engine]\ninflight_runtime = "synthetic"\n'


def try_gpu_image(model: str, settings: Mapping[str, str]) -> dict[str, Any]:
    """It ends with a sentence about the GPU; with an engine that needs none it serves the router's chats."""
    with opened(settings) as containers:
        said = refusal(containers)
        print(f"{NAME} without a GPU: {said}", flush=True)
        file = containers.project.folder / SETTINGS
        file.write_text(file.read_text() + WITHOUT_GPU)
        began_s = time.monotonic()
        containers.up(*OTHERS, NAME)
        containers.wait_healthy(NAME)
        ready_s = time.monotonic() - began_s
        containers.wait_healthy("router")
        with closing(Load(containers.url("router"), containers.secret("admin_key"), model)) as load:
            how, answer = load.ask(stream=True)
        if how != ANSWERED:
            raise Failed(f"a chat through {NAME} was {how}: {answer}\n{containers.log(NAME)[-4000:]}")
        print(f"{NAME} with an engine that needs none: healthy after {ready_s:.1f} s, answers", flush=True)
        return {"refusal": said, "ready_s": round(ready_s, 1)}


def refusal(containers: Containers) -> str:
    """What it says last, when it is started as the file says."""
    try:
        containers.once(NAME)
    except Failed as failed:
        lines = [line.strip() for line in str(failed).splitlines() if line.strip()]
        if REFUSAL in lines[-1]:
            return lines[-1]
        raise
    raise Failed(f"{NAME} has ended without an error about the missing GPU")
