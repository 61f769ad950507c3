"""The import table of the design, held against the code: who may know whom."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"python_backend", "router", "client", "loadtest", "launcher", "benchmarks", "tests"}

# Folder -> the packages of this project that it may import.
ALLOWED = {
    "model_repository": {"python_backend"},
    "ensembles": set(),
    "python_backend": {"python_backend"},
    "python_backend/wire": {"python_backend.costs", "python_backend.wire"},
    "python_backend/costs": {"python_backend.costs"},
    "python_backend/gguf": {"python_backend.gguf", "python_backend.wire"},
    "python_backend/engine": {
        "python_backend.costs",
        "python_backend.engine",
        "python_backend.gguf",
        "python_backend.wire",
    },
    "python_backend/text": {"python_backend.text"},
    "python_backend/embeddings": {
        "python_backend.embeddings",
        "python_backend.engine.checkpoint",
        "python_backend.wire",
    },
    "python_backend/triton_adapter": {"python_backend"},
    "router": {"router", "python_backend.costs", "python_backend.wire"},
    "client": {"client"},
    "loadtest": {"loadtest", "client"},
    # Tenants, keys and releases are managed on the store itself, whether a router runs or not. The simulation
    # plays traces through the very decisions that serve: admission, the choice of a replica, a step's budget.
    "launcher": {
        "launcher",
        "client",
        "loadtest",
        "python_backend.costs",
        "python_backend.engine.scheduling",
        "python_backend.gguf",
        "python_backend.wire",
        "router.tenancy",
        "router.admission",
        "router.fleet.choosing",
        "router.objectives",
        "router.privacy.prompt_log",
        "router.releases",
        "router.rollouts",
        "router.store",
        "router.tuning",
    },
    "benchmarks": {"benchmarks", "client", "loadtest", "launcher", "python_backend", "router"},
}
# What decides: values in, value out. Beside our own values it may import the standard library alone.
DECISIONS = (
    "loadtest/shapes/curves.py",
    "python_backend/costs",
    "python_backend/engine/scheduling",
    "router/admission/capacity.py",
    "router/admission/deadline.py",
    "router/admission/demand.py",
    "router/admission/dispatcher.py",
    "router/admission/fairness.py",
    "router/admission/first_come.py",
    "router/admission/forecast.py",
    "router/admission/lanes.py",
    "router/admission/lengths.py",
    "router/admission/neighbours.py",
    "router/admission/place.py",
    "router/admission/policy.py",
    "router/admission/pricing.py",
    "router/admission/restraint.py",
    "router/admission/room.py",
    "router/admission/signals.py",
    "router/admission/under_way.py",
    "router/batches/status.py",
    "router/conversations/window.py",
    "router/fleet/choosing.py",
    "router/fleet/health.py",
    "router/fleet/retrying.py",
    "router/fleet/vital_signs.py",
    "router/objectives/distribution.py",
    "router/objectives/metric.py",
    "router/objectives/objective.py",
    "router/objectives/standing.py",
    "router/releases",
    "router/sharing/places.py",
    "router/sharing/usage.py",
    "router/tenancy/budget.py",
    "router/tenancy/ledger.py",
    "router/tenancy/limits.py",
    "router/tenancy/rbac.py",
    "router/tracing/context.py",
    "router/tuning/ladder.py",
    "router/tuning/linger.py",
    "router/tuning/statistics.py",
    "router/tuning/steps.py",
)
PURE = ("python_backend/wire", *DECISIONS)
# NVIDIA's server and what talks to it; the compiler for GPUs that is called Triton too is something else.
TRITON_SERVER = {
    "c_python_backend_utils",
    "pytriton",
    "triton_python_backend_utils",
    "tritonclient",
    "tritonserver",
}
# What is heavy, or is not on every machine -> the only folders of the product that may import it.
HEAVY = {
    "torch": ("python_backend/engine/cuda", "python_backend/engine/llm"),
    "triton": ("python_backend/engine/cuda",),
    "numba": ("python_backend/engine/native",),
    "opentelemetry": ("router/tracing",),
    "redis": ("router/sharing",),
}
PRODUCT = ("client", "ensembles", "launcher", "loadtest", "model_repository", "python_backend", "router")
NO_EFFECTS = {"time", "threading", "socket", "asyncio", "subprocess", "multiprocessing", "os", "random"}


def python_files(folder: str) -> list[Path]:
    place = ROOT / folder
    return [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))


@cache
def imports(path: Path, at_once: bool = False) -> set[str]:
    """Full dotted names of what a file imports, relative ones resolved: ever, or when it is imported."""
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    found: set[str] = set()
    module = ast.parse(path.read_text(), str(path))
    for node in module.body if at_once else ast.walk(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{source}.{alias.name}" for alias in node.names} if source in OURS else {source}
    return found


def is_within(name: str, packages: set[str]) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


@pytest.mark.parametrize("folder", ALLOWED)
def test_a_folder_imports_only_what_the_design_allows(folder: str) -> None:
    for path in python_files(folder):
        ours = {name for name in imports(path) if name.split(".")[0] in OURS}
        strangers = {name for name in ours if not is_within(name, ALLOWED[folder])}
        assert not strangers, f"{path.relative_to(ROOT)} imports {sorted(strangers)}"


def test_the_table_covers_every_folder_with_code() -> None:
    places = [place for place in ROOT.glob("[!.]*") if place.name not in ("tests", "deploy", "docs")]
    folders = {place.name for place in places if place.is_dir() and any(place.rglob("*.py"))}
    assert folders <= set(ALLOWED), f"not in the table: {sorted(folders - set(ALLOWED))}"


@pytest.mark.parametrize("folder", PURE)
def test_contract_and_decisions_need_the_standard_library_alone(folder: str) -> None:
    for path in python_files(folder):
        foreign = {
            name.split(".")[0]
            for name in imports(path)
            if name.split(".")[0] not in sys.stdlib_module_names and name.split(".")[0] not in OURS
        }
        assert not foreign, f"{path.relative_to(ROOT)} imports {sorted(foreign)}"


@pytest.mark.parametrize("folder", DECISIONS)
def test_decisions_have_no_clock_thread_socket_or_chance(folder: str) -> None:
    assert python_files(folder)
    for path in python_files(folder):
        effects = {name.split(".")[0] for name in imports(path)} & NO_EFFECTS
        assert not effects, f"{path.relative_to(ROOT)} imports {sorted(effects)}"


@pytest.mark.parametrize("folder", ["python_backend/engine", "python_backend/text", "python_backend/wire"])
def test_only_the_adapter_knows_triton_the_server(folder: str) -> None:
    adapter = {"python_backend.triton_adapter", *TRITON_SERVER}
    for path in python_files(folder):
        assert not {name for name in imports(path) if is_within(name, adapter)}, path


@pytest.mark.parametrize("package", HEAVY)
def test_what_is_heavy_is_imported_where_it_is_used_alone(package: str) -> None:
    users = [
        path.relative_to(ROOT)
        for folder in PRODUCT
        for path in python_files(folder)
        if any(is_within(name, {package}) for name in imports(path))
    ]
    assert users
    strangers = [path for path in users if not any(path.is_relative_to(folder) for folder in HEAVY[package])]
    assert not strangers, f"{package} is imported by {list(map(str, strangers))}"


def test_the_gpus_part_of_the_engine_is_imported_only_when_it_is_chosen() -> None:
    """On a machine without a GPU torch and triton need not be there."""
    for path in python_files("python_backend"):
        if path.is_relative_to(ROOT / "python_backend/engine/cuda"):
            continue
        at_once = {
            name for name in imports(path, at_once=True) if is_within(name, {"python_backend.engine.cuda"})
        }
        assert not at_once, f"{path.relative_to(ROOT)} imports {sorted(at_once)}"


def test_a_router_that_neither_traces_nor_shares_imports_nothing_for_it() -> None:
    exporting = ROOT / "router/tracing/exporting.py"
    optional = {"opentelemetry", "redis", "router.tracing.exporting"}
    for path in python_files("router"):
        at_once = {name for name in imports(path, at_once=True) if is_within(name, optional)}
        assert path == exporting or not at_once, f"{path.relative_to(ROOT)} imports {sorted(at_once)}"
