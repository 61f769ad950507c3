"""What a load test ran on: figures without the machine and the versions beside them say nothing."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import re
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

_TIMEOUT_S = 5.0
_UNTOLD = (OSError, ValueError, KeyError, TypeError)
_PACKAGES = ("inflight", "nvidia-pytriton", "locust", "torch", "tensorrt_llm")


def about_machine() -> dict[str, str]:
    """This one, which is the server's too where the stack runs here."""
    about = {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{_memory_gib():.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
    }
    if gpus := _gpus():
        about["GPU"] = gpus
    for package in _PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            about[package] = importlib.metadata.version(package)
    return about


def about_server(url: str, key: str = "") -> dict[str, str]:
    """What the router says of itself and of the models behind it; nothing where it does not."""
    about = {"target": url}
    with suppress(*_UNTOLD):
        metrics = _text(f"{url.rstrip('/')}/metrics", key)
        about["server"] = f"inflight {_version(metrics)}"
    with suppress(*_UNTOLD):
        models = _get(f"{url.rstrip('/')}/v1/models", key)
        about["models"] = ", ".join(model["id"] for model in models["data"])
    return about


def _version(metrics: str) -> str:
    """Of a page of the router's metrics. Raises ValueError where it does not say."""
    found = re.search(r'^inflight_build_info\{version="([^"]+)"', metrics, re.MULTILINE)
    if found is None:
        raise ValueError("no inflight_build_info")
    return found[1]


def _get(url: str, key: str) -> Any:
    return json.loads(_text(url, key))


def _text(url: str, key: str) -> str:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as answer:
        return str(answer.read(), "utf-8")


def about_triton(address: str) -> dict[str, str]:
    """The version of the Triton server at a gRPC address."""
    from tritonclient.grpc import InferenceServerClient
    from tritonclient.utils import InferenceServerException

    client = InferenceServerClient(address, channel_args=[("grpc.enable_http_proxy", 0)])
    try:
        told = client.get_server_metadata(client_timeout=_TIMEOUT_S)
    except InferenceServerException:
        return {}
    finally:
        client.close()
    return {"Triton": str(told.version)}


def _processor() -> str:
    """As lscpu has it: not every kernel writes a name that people know into /proc."""
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        environment = {**os.environ, "LC_ALL": "C"}
        command = ["lscpu", "--json"]
        told = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=True, env=environment)
        for row in _rows(json.loads(told.stdout)["lscpu"]):
            if row["field"] == "Model name:" and row["data"] not in (None, "-"):
                return str(row["data"])
    return platform.processor() or platform.machine()


def _rows(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for row in rows:
        yield row
        yield from _rows(row.get("children", []))


def _memory_gib() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30


def _gpus() -> str:
    """Names and drivers, where NVIDIA's tool is there and answers."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
        return "; ".join(line.strip() for line in told.stdout.splitlines() if line.strip())
    return ""
