"""A stack with tenants, keys and objectives, asked as its operator would ask it."""

from __future__ import annotations

import re
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from benchmarks.objectives.judging import Objectives
from benchmarks.stack import RunningStack, running_stack
from launcher.commands.main import app
from python_backend.costs.step_cost import StepCost
from router.core.tenant import Role, Scope
from router.settings import load as load_router_settings
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import open_administration
from router.triton.control import TritonControl

# What the store says is read by the router within that time, with a margin.
READ_WITHIN_S = 2.0


@dataclass(frozen=True)
class Setup:
    """What is to be served, and where; `engine` are parameters of the text model's engine."""

    engine: Mapping[str, str]
    model: str | None = None
    data_dir: Path | None = None
    router: Mapping[str, Any] = field(default_factory=dict)
    embeddings: bool = True
    triton_servers: int = 1


@dataclass(frozen=True)
class Served:
    """`keys` and `ids` are those of the tenants, by their names."""

    stack: RunningStack
    keys: Mapping[str, str]
    ids: Mapping[str, str]
    data_dir: Path | None

    @property
    def url(self) -> str:
        return self.stack.url

    @property
    def model(self) -> str:
        return self.stack.model

    def inflight(self, *words: str) -> str:
        """A command, on the store of this stack."""
        config = self.stack.output_file.parent / "inflight.toml"
        options = ["--config", str(config), *(["--data-dir", str(self.data_dir)] if self.data_dir else [])]
        done = CliRunner().invoke(app, [*words, *options])
        if done.exit_code:
            raise RuntimeError(f"inflight {' '.join(words)}: {done.output}")
        return done.stdout

    def set_objectives(self, objectives: Objectives) -> None:
        for tier, objective in objectives.items():
            wanted = {
                "--first-token": objective.first_token_s,
                "--inter-token": objective.inter_token_s,
                "--end-to-end": objective.end_to_end_s,
            }
            words = [f"{value * 1000:g}ms" for value in wanted.values() if value is not None]
            options = [option for option, value in wanted.items() if value is not None]
            pairs = [word for pair in zip(options, words, strict=True) for word in pair]
            self.inflight("slo", "set", objective.model, "--tier", tier, *pairs)
        time.sleep(READ_WITHIN_S)

    def metric(self, family: str, **labels: str) -> float:
        """The router's: the sum over all that have these labels, 0 without any."""
        return _sum(_get(f"{self.url}/metrics"), family, labels)

    def replica_names(self) -> list[str]:
        """Of the model's replicas, as the router calls them."""
        pattern = rf'^inflight_replica_outstanding_tokens{{model="{self.model}",.*replica="([^"]*)"'
        return re.findall(pattern, _get(f"{self.url}/metrics"), re.MULTILINE)

    def triton_metrics(self) -> str:
        return _get(self.stack.triton_metrics_url)

    def all_triton_metrics(self) -> list[str]:
        return [_get(url) for url in self.stack.triton_metrics_urls]

    def triton_metric(self, family: str, **labels: str) -> float:
        return _sum(self.triton_metrics(), family, labels)

    def learned_cost(self) -> StepCost | None:
        """What the engine has learned of its steps, None before it knows enough."""
        names = ("base", "prefill_token", "decode_sequence", "kv_kilotoken")
        found_s = [
            self.triton_metric("inflight_engine_step_cost_seconds", coefficient=name) for name in names
        ]
        return StepCost(*(1000 * each for each in found_s)) if any(found_s) else None

    def wait_until_idle(self, limit_s: float = 120.0) -> None:
        deadline_s = time.monotonic() + limit_s
        while self.metric("inflight_requests_in_flight") > 0:
            if time.monotonic() > deadline_s:
                raise TimeoutError("requests are still in flight")
            time.sleep(0.2)

    def control(self) -> TritonControl:
        """Triton's model control, at the socket that the launcher gave to the router; close it."""
        server = load_router_settings(self.stack.logs / "router.toml").triton_servers[0]
        return TritonControl(server.url)


@contextmanager
def serving(setup: Setup, tenants: Iterable[str] = ()) -> Iterator[Served]:
    """Fresh, with a key for each tenant; without tenants nobody needs one."""
    with tempfile.TemporaryDirectory(prefix="inflight-objectives-") as folder:
        state_dir = Path(folder) / "state"
        keys, ids = make_tenants(state_dir, tenants)
        settings = {**setup.router, "state_dir": str(state_dir), "metrics_open": True}
        with running_stack(
            setup.engine,
            setup.model,
            setup.data_dir,
            settings,
            setup.triton_servers,
            setup.embeddings,
        ) as stack:
            try:
                yield Served(stack, keys, ids, setup.data_dir)
            except BaseException:
                print(stack.output()[-6000:], file=sys.stderr)
                raise


def make_tenants(state_dir: Path, tenants: Iterable[str]) -> tuple[dict[str, str], dict[str, str]]:
    """A key of each, and what the router calls it."""
    keys: dict[str, str] = {}
    ids: dict[str, str] = {}
    names = sorted(set(tenants))
    if names:
        with open_administration(state_dir) as admin:
            for name in names:
                tenant = admin.create_organisation(SYSTEM, f"tenant-{name}")
                user = admin.create_user(SYSTEM, tenant.id, "owner", Role.OWNER)
                _, keys[name] = admin.create_key(SYSTEM, tenant.id, user.id, "bench", frozenset(Scope))
                ids[name] = tenant.id
    return keys, ids


def _get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        text: str = response.read().decode()
    return text


def _sum(text: str, family: str, labels: Mapping[str, str]) -> float:
    wanted = [f'{name}="{value}"' for name, value in labels.items()]
    lines = [line for line in text.splitlines() if re.match(rf"{family}[{{ ]", line)]
    return sum(float(line.rpartition(" ")[2]) for line in lines if all(label in line for label in wanted))
