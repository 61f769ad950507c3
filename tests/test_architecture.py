"""The import table of the design, held against the code: who may know whom."""

from __future__ import annotations

import ast
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"python_backend", "router", "client", "loadtest", "launcher", "simulator", "benchmarks", "tests"}

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
        "python_backend.host",
        "python_backend.sharing",
        "python_backend.wire",
    },
    "python_backend/host": set(),
    "python_backend/sharing": {"python_backend.sharing", "python_backend.wire"},
    "python_backend/text": {"python_backend.text"},
    "python_backend/embeddings": {
        "python_backend.embeddings",
        "python_backend.engine.checkpoint",
        "python_backend.engine.host.processor",
        "python_backend.engine.models",
        "python_backend.text",
        "python_backend.wire",
    },
    "python_backend/triton_adapter": {"python_backend"},
    "router": {
        "router",
        "python_backend.costs",
        "python_backend.host",
        "python_backend.sharing",
        "python_backend.wire",
    },
    "client": {"client", "python_backend.wire.visible_text"},
    "loadtest": {"loadtest", "client"},
    # The simulator plays traces through the very decisions that serve: admission, the choice of a replica, a
    # step's budget.
    "simulator": {
        "simulator",
        "client.screen_parts",
        "loadtest",
        "python_backend.costs",
        "python_backend.engine.scheduling",
        "python_backend.sharing",
        "python_backend.wire",
        "router.admission",
        "router.control.releases",
        "router.control.scaling",
        "router.core",
        "router.routing.replica_choice",
    },
    # Tenants, keys and releases are managed on the store itself, whether a router runs or not.
    "launcher": {
        "launcher",
        "client",
        "loadtest",
        "python_backend.costs",
        "python_backend.gguf",
        "python_backend.host",
        "python_backend.wire",
        "router.control",
        "router.core",
        "router.routing.split",
        "router.store",
        "router.telemetry.prompt_log",
        "router.tenants",
        "router.triton.protocol",
        "simulator",
    },
    "benchmarks": {
        "benchmarks",
        "client",
        "launcher",
        "loadtest",
        "python_backend",
        "router",
        "simulator",
        "tests",
    },
}
# The layers inside a package: room -> the rooms that it may import. A room is a folder or a file of the
# package; what is not named here puts the others together, and may import all of them.
_NOUNS = {"core", "settings"}
_PATH = {*_NOUNS, "admission", "http", "request", "routing", "safety", "tenants"}
_STEP = {"kv", "report", "sampling", "scheduling", "sequence", "steps"}
_OF_LAUNCHER = {
    *("bundle", "console", "failure", "paths", "placement", "private_memory"),
    *("progress", "settings", "tether", "toml"),
}
LAYERS: dict[str, dict[str, set[str]]] = {
    "router": {
        "core": set(),
        "settings": {"core"},
        "grpc": set(),
        "store": {"core"},
        "http": _NOUNS,
        "triton": {"core", "grpc"},
        "routing": {*_NOUNS, "grpc", "triton"},
        "tenants": {"core", "store"},
        "safety": _NOUNS,
        "admission": {"core", "routing", "triton"},
        # The path of a request: it knows nothing of what decides slowly, of stored content or of metrics.
        "request": {*_NOUNS, "admission", "http", "routing", "safety", "tenants"},
        # Answers that are kept for who comes back; it wraps the path, and no door knows of it.
        "resume": {*_NOUNS, "http", "request"},
        "answer_cache": {*_NOUNS, "http", "request", "routing"},
        "cascade": {*_NOUNS, "http", "request"},
        "content": {*_NOUNS, "http", "request", "routing", "store", "tenants"},
        "control": {
            *_NOUNS,
            "admission",
            "grpc",
            "request",
            "resume",
            "routing",
            "store",
            "tenants",
            "triton",
        },
        "telemetry": {*_PATH - {"http", "safety"}, "answer_cache", "cascade", "control", "store"},
        # What chats have in common, whatever door they came through; no door knows another.
        "chat": {"core", "http", "request", "routing"},
        "openai": {*_PATH, "chat", "content", "resume", "store"},
        "anthropic": {*_PATH, "chat"},
        "ollama": {*_PATH, "chat"},
        "kserve": {*_PATH, "triton"},
        "admin": {*_PATH, "control", "store", "telemetry"},
        # Files alone: what they show is the public API.
        "console": {"core", "http", "request"},
    },
    "launcher": {
        **{each: set() for each in _OF_LAUNCHER},
        "python_version": set(),
        "secret_files": {"settings"},
        # What must be on disk before a server starts: checkpoints, releases, model repositories, Triton,
        # packed weights. It knows no store: registering a release is up to the command.
        "packaging": _OF_LAUNCHER,
        "stack": {*_OF_LAUNCHER, "packaging", "secret_files"},
    },
    "python_backend.engine": {
        "config": set(),
        "host": set(),
        "report": set(),
        "request": set(),
        "refusals": {"request"},
        "formats": set(),
        "checkpoint": {"formats"},
        "models": {"checkpoint", "formats"},
        "adapters": {"checkpoint", "models"},
        "kv": {"models", "request"},
        "guides": {"request"},
        "sequence": {"adapters", "guides", "kv", "report", "request"},
        "sampling": {"request", "sequence"},
        "scheduling": {"kv", "sequence"},
        "steps": {"adapters", "guides", "kv", "report", "request", "sampling", "scheduling", "sequence"},
        # What computes: on the CPU and on a GPU.
        "native": {"adapters", "host", "kv", "models", "scheduling"},
        "cuda": {"adapters", "config", "guides", "host", "models", "request", *_STEP},
        "engine": {"adapters", "config", "guides", "host", "refusals", "request", *_STEP},
        "build": {
            *("adapters", "checkpoint", "config", "cuda", "engine", "guides", "host", "models", "native"),
            *_STEP,
        },
        "runtimes": {
            *("adapters", "build", "config", "engine", "formats", "host", "refusals", "request"),
            *_STEP,
        },
        "process": {"report", "request", "runtimes"},
        "tasks": {
            "build",
            "checkpoint",
            "config",
            "cuda",
            "host",
            "models",
            "native",
            "request",
            "runtimes",
            *_STEP,
        },
    },
}
# What decides: values in, value out. Beside our own values it may import the standard library alone.
DECISIONS = (
    "launcher/placement.py",
    "loadtest/chaos/limits.py",
    "loadtest/chaos/sheet.py",
    "loadtest/shapes/curves.py",
    "python_backend/costs",
    "python_backend/engine/formats",
    "python_backend/engine/adapters/places.py",
    "python_backend/engine/kv/layout.py",
    "python_backend/engine/kv/window_claims.py",
    "python_backend/engine/scheduling",
    "python_backend/sharing",
    "router/admission/allocation.py",
    "router/admission/batch_limit.py",
    "router/admission/capacity.py",
    "router/admission/demand.py",
    "router/admission/dispatcher.py",
    "router/admission/forecast.py",
    "router/admission/judge.py",
    "router/admission/lane.py",
    "router/admission/policy.py",
    "router/admission/queue.py",
    "router/admission/refusal_pace.py",
    "router/admission/running.py",
    "router/admission/signals.py",
    "router/cascade/checks.py",
    "router/content/batches/decisions.py",
    "router/content/conversations/window.py",
    "router/control/health/vital_signs.py",
    "router/control/objectives/distribution.py",
    "router/control/objectives/standing.py",
    "router/control/peers/slots.py",
    "router/control/releases/arm_stats.py",
    "router/control/releases/canary.py",
    "router/control/releases/canary_checks.py",
    "router/control/releases/evidence.py",
    "router/control/releases/faults.py",
    "router/control/releases/forecast.py",
    "router/control/releases/gates.py",
    "router/control/releases/memory_fit.py",
    "router/control/releases/paired_times.py",
    "router/control/releases/plan.py",
    "router/control/releases/rate_checks.py",
    "router/control/releases/shadow_gate.py",
    "router/control/releases/shift_checks.py",
    "router/control/releases/states.py",
    "router/control/releases/sums.py",
    "router/control/scaling/courses.py",
    "router/control/scaling/demand.py",
    "router/control/scaling/replicas.py",
    "router/control/tuning/ladder.py",
    "router/control/tuning/queue_delay.py",
    "router/control/tuning/statistics.py",
    "router/control/tuning/step_limits.py",
    "router/core/manifest.py",
    "router/core/objective.py",
    "router/core/answer_text.py",
    "router/core/stages.py",
    "router/core/trace.py",
    "router/http/body_shares.py",
    "router/request/web_pages.py",
    "router/routing/hedging.py",
    "router/routing/pools.py",
    "router/routing/replay.py",
    "router/routing/replica_choice.py",
    "router/routing/split.py",
    "router/tenants/budget.py",
    "router/tenants/ledger.py",
    "router/tenants/limits.py",
    "router/tenants/rbac.py",
    "router/tenants/shared_usage.py",
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
    "torch": (
        "python_backend/embeddings/cuda",
        "python_backend/engine/cuda",
        "python_backend/engine/runtimes/trtllm",
        "python_backend/engine/runtimes/vllm",
    ),
    "triton": ("python_backend/engine/cuda",),
    "numba": ("python_backend/engine/native", "simulator/fleet"),
    "onnx": ("python_backend/embeddings",),
    "onnxruntime": ("python_backend/embeddings", "python_backend/triton_adapter/onnx_model.py"),
    "opentelemetry": ("router/telemetry/tracing",),
    "vllm": ("python_backend/engine/runtimes/vllm",),
    "redis": ("router/control/peers",),
}
PRODUCT = (
    "client",
    "ensembles",
    "launcher",
    "loadtest",
    "model_repository",
    "python_backend",
    "router",
    "simulator",
)
NO_EFFECTS = {"time", "threading", "socket", "asyncio", "subprocess", "multiprocessing", "os", "random"}


def python_files(folder: str) -> list[Path]:
    place = ROOT / folder
    return [place] if place.suffix == ".py" else sorted(place.rglob("*.py"))


class Parsed(NamedTuple):
    """What a file imports when it is imported itself and anywhere, and what it loads by."""

    at_once: list[ast.stmt]
    anywhere: list[ast.stmt]
    loads: set[str]


@cache
def parsed(path: Path) -> Parsed:
    module = ast.parse(path.read_text(), str(path))
    found = Parsed([node for node in module.body if isinstance(node, ast.Import | ast.ImportFrom)], [], set())
    for node in ast.walk(module):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.anywhere.append(node)
        elif isinstance(node, ast.Attribute) and node.attr == "load":
            found.loads.add(ast.unparse(node))
    return found


@cache
def imports(path: Path, at_once: bool = False) -> set[str]:
    """Full dotted names of what a file imports, relative ones resolved: ever, or when it is imported."""
    package = list(path.relative_to(ROOT).with_suffix("").parts[:-1])
    found: set[str] = set()
    file = parsed(path)
    for node in file.at_once if at_once else file.anywhere:
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
def test_only_the_adapter_imports_tritons_server_api(folder: str) -> None:
    adapter = {"python_backend.triton_adapter", *TRITON_SERVER}
    for path in python_files(folder):
        assert not {name for name in imports(path) if is_within(name, adapter)}, path


@pytest.mark.parametrize("package", HEAVY)
def test_heavy_packages_are_imported_only_where_they_are_used(package: str) -> None:
    users = [
        path.relative_to(ROOT)
        for folder in PRODUCT
        for path in python_files(folder)
        if any(is_within(name, {package}) for name in imports(path))
    ]
    assert users
    strangers = [path for path in users if not any(path.is_relative_to(folder) for folder in HEAVY[package])]
    assert not strangers, f"{package} is imported by {list(map(str, strangers))}"


def test_the_cuda_engine_is_imported_only_when_it_is_chosen() -> None:
    """On a machine without a GPU torch and triton need not be there."""
    for path in python_files("python_backend"):
        if path.is_relative_to(ROOT / "python_backend/engine/cuda"):
            continue
        at_once = {
            name for name in imports(path, at_once=True) if is_within(name, {"python_backend.engine.cuda"})
        }
        assert not at_once, f"{path.relative_to(ROOT)} imports {sorted(at_once)}"


def test_a_router_without_tracing_and_peers_imports_nothing_for_them() -> None:
    exporting = ROOT / "router/telemetry/tracing/otlp.py"
    optional = {"opentelemetry", "redis", "router.telemetry.tracing.otlp"}
    for path in python_files("router"):
        at_once = {name for name in imports(path, at_once=True) if is_within(name, optional)}
        assert path == exporting or not at_once, f"{path.relative_to(ROOT)} imports {sorted(at_once)}"


def modules(package: str) -> dict[str, Path]:
    """Every module of a package by its dotted name."""
    files = python_files(package.replace(".", "/"))
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in files
    }


def module_imports(path: Path, known: dict[str, Path]) -> set[str]:
    """Which of the known modules a file imports, for types alone or not, at once or later."""
    found: set[str] = set()
    for node in parsed(path).anywhere:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= (submodules & known.keys()) or {node.module}
    return found & known.keys()


@pytest.mark.parametrize("package", LAYERS)
def test_a_room_imports_only_the_layers_below_it(package: str) -> None:
    known, allowed = modules(package), LAYERS[package]
    depth = package.count(".") + 1
    strangers = [
        f"{name} imports {imported}"
        for name, path in known.items()
        for imported in sorted(module_imports(path, known))
        if (room := name.split(".")[depth : depth + 1]) and room[0] in allowed
        if imported.split(".")[depth : depth + 1] != room
        if not {*imported.split(".")[depth : depth + 1]} <= allowed[room[0]]
    ]
    assert not strangers, "\n".join(["above its layer:", *strangers])


def test_no_door_of_the_router_may_import_another() -> None:
    doors = {"admin", "anthropic", "console", "kserve", "ollama", "openai"}
    assert not [door for door in doors if LAYERS["router"][door] & doors]


@pytest.mark.parametrize(
    "package", ["client", "launcher", "loadtest", "python_backend", "router", "simulator"]
)
def test_no_files_import_each_other_in_a_circle(package: str) -> None:
    """Types count too: two files that need each other's nouns are one file, or lack a third."""
    known = modules(package)
    graph = {name: module_imports(path, known) - {name} for name, path in known.items()}
    while leaves := [name for name, imported in graph.items() if not imported & graph.keys()]:
        for name in leaves:
            del graph[name]
    while tops := graph.keys() - {each for imported in graph.values() for each in imported}:
        for name in tops:
            del graph[name]
    assert not graph, f"circles among {sorted(graph)}"


@pytest.mark.parametrize("folder", PRODUCT)
def test_no_file_that_is_read_can_run_code(folder: str) -> None:
    """What loads objects instead of values runs what it is told to."""
    unsafe = {"dill", "joblib", "marshal", "pickle", "shelve"}
    for path in python_files(folder):
        assert not {name.partition(".")[0] for name in imports(path)} & unsafe, path
        assert not parsed(path).loads & {"torch.load", "yaml.load"}, path
