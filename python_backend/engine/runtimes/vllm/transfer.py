"""Keys and values that go from one vLLM to another: which connector takes them, and what each side is told.

vLLM's connectors speak one language: who computes a prompt for another is asked with `do_remote_decode`, what
its answer says goes to the other as it is. That answer, with the connector's name, is the contract's
`context_phase_params`.
"""

from __future__ import annotations

import json
import os
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from python_backend.engine.request import GenerationRequest
from python_backend.wire.parameters import EngineParameters, refusal
from python_backend.wire.pools import BOTH, PREFILL, Part

NIXL, FILES = "nixl", "files"
# How long keys and values are kept for who does not come for them.
KEPT_S = 60
_FOR_ANOTHER = {"do_remote_decode": True, "do_remote_prefill": False}
_FILE_CONNECTOR = "python_backend.engine.runtimes.vllm.file_connector"


class Transfers:
    """`connector` is how this engine's keys and values go; those told of another way are computed here."""

    def __init__(self, connector: str) -> None:
        self._connector = connector

    def asked_with(self, request: GenerationRequest) -> dict[str, Any]:
        """Arguments of `SamplingParams`."""
        told = _FOR_ANOTHER if request.part is Part.CONTEXT else self._read(request.context)
        return {"extra_args": {"kv_transfer_params": told}} if told else {}

    def told(self, params: dict[str, Any] | None) -> bytes | None:
        """What another engine needs, by what vLLM said at the end of a prompt; None where it said nothing."""
        if not params:
            return None
        return json.dumps({"connector": self._connector, "params": params}).encode()

    def _read(self, context: bytes) -> dict[str, Any] | None:
        try:
            given = json.loads(context or b"null")
            params = given["params"] if given["connector"] == self._connector else None
        except (ValueError, TypeError, KeyError):
            params = None
        return params if isinstance(params, dict) else None


def choose_connector(parameters: EngineParameters, has_nixl: bool, device: str) -> str | None:
    """None where nothing is passed on; refuses what is not there."""
    wanted = parameters.inflight_kv_connector
    if parameters.inflight_pool == BOTH:
        return None
    if wanted == NIXL and not has_nixl:
        raise refusal(
            "inflight_kv_connector",
            NIXL,
            f"auto or {FILES}: nixl is not installed in vLLM's Python environment",
        )
    chosen = NIXL if wanted == NIXL or (wanted == "auto" and has_nixl and device != "cpu") else FILES
    folder = parameters.inflight_kv_folder or ""
    if chosen == FILES and not folder.startswith("/"):
        raise refusal("inflight_kv_folder", folder, "the absolute path of a directory shared by both pools")
    return chosen


def transfer_arguments(parameters: EngineParameters, connector: str | None) -> dict[str, Any]:
    """Of `AsyncEngineArgs`. What cannot be had from the other engine is computed."""
    if connector is None:
        return {}
    role = "kv_producer" if parameters.inflight_pool == PREFILL else "kv_consumer"
    config: dict[str, Any] = {"kv_role": role, "kv_load_failure_policy": "recompute"}
    if connector == NIXL:
        config["kv_connector"] = "NixlConnector"
        config["kv_connector_extra_config"] = {"kv_lease_duration": KEPT_S}
    else:
        config |= {
            "kv_connector": "FileConnector",
            "kv_connector_module_path": _FILE_CONNECTOR,
            "kv_connector_extra_config": {"folder": parameters.inflight_kv_folder, "kept_s": KEPT_S},
        }
    return {"kv_transfer_config": config}


def prepare(parameters: EngineParameters, connector: str | None) -> None:
    """Before vLLM is loaded: a port of its own for NIXL's handshake, a folder of this user's for files."""
    if connector == NIXL and "VLLM_NIXL_SIDE_CHANNEL_PORT" not in os.environ:
        with socket.create_server(("localhost", 0)) as free:
            os.environ["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(free.getsockname()[1])
    if connector == FILES:
        folder = Path(str(parameters.inflight_kv_folder))
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if folder.stat().st_mode & 0o077:
            allowed = "a directory with mode 0700, as its files reveal prompts"
            raise refusal("inflight_kv_folder", str(folder), allowed)


def has_nixl() -> bool:
    return find_spec("nixl") is not None
