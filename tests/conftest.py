"""Fixtures for the tests that need the real thing: one stack for all of them that can share it."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests import tiers
from tests.change import seed_of_this_change
from tests.division import (
    LOW_PRIORITY,
    TESTS,
    Share,
    in_order_of_worth,
    is_of_a_stack,
    make_scheduling,
    runs_all,
    seconds_of,
    work_of,
)
from tests.figures import FigureFile
from tests.lasting import end_all, lasting
from tests.pace import slowdown
from tests.progress import Progress
from tests.recorded_times import Failures, Recording, file_of, read_times
from tests.scheduling import Scheduling

# The launcher is imported where it is needed: a GPU host that only tests the engine may not have it.
if TYPE_CHECKING:
    from benchmarks.stack import RunningStack

SHARE = pytest.StashKey[Share]()
FAILURES = pytest.StashKey[Failures]()
ABOUT_THE_CPU = "about the CPU's kernels"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        choices=("cpu", "cuda"),
        default="cpu",
        help="where engines of tests compute; with cpu the GPU's kernels run too, interpreted",
    )
    parser.addoption(
        "--thorough",
        action="store_true",
        help="everything at its full length: make test-thorough; without it, the first tier (tests/tiers.py)",
    )
    parser.addoption(
        "--slice",
        type=int,
        metavar="N",
        help="only the slice of the thorough tier whose turn is the Nth, and nothing of the first tier",
    )
    parser.addoption("--record", action="store_true", help="write tests/times.txt after a run of all tests")
    parser.addoption("--figures", type=Path, help="a file for what tests measured; see tests/figures.py")


def pytest_configure(config: pytest.Config) -> None:
    if (figures := config.getoption("--figures")) and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FigureFile(figures))
    # Below a shell's background job it is ignored, by all that is started too; many tests press Ctrl-C.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--slice") is not None:
        config.option.thorough = True
    tiers.choose_examples(thorough=config.getoption("--thorough"), seed=seed_of_this_change())
    # A test that hangs is ended later where everything takes longer.
    config.option.timeout = (
        config.getoption("timeout", None) or float(config.getini("timeout"))
    ) * slowdown()
    # Commands that tests call in this process make files as they do in their own: for the owner alone.
    os.umask(0o077)
    config.stash[SHARE] = Share(config)
    config.stash[FAILURES] = Failures(config)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(config.stash[FAILURES])
        is_whole = runs_all(config) and config.getoption("--slice") is None
        if config.getoption("--record") and is_whole:
            config.pluginmanager.register(Recording(thorough=config.getoption("--thorough")))
    if config.getoption("--device") == "cpu":
        # Read when a kernel is defined, so before anything imports one.
        os.environ["TRITON_INTERPRET"] = "1"
        # Read when torch and numpy are imported. On cores that the workers share, the second of two threads
        # mostly spins: tests that compare with torch would take two to three times the CPU time.
        for threads in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            os.environ.setdefault(threads, "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """What is imported meanwhile stays: the garbage collector would look through all of it in vain.

    Nor do tests leave much: it looks for that a fifth as often, which takes a third less.
    """
    gc.disable()
    share = session.config.stash[SHARE]
    try:
        if share.imports_backwards:
            import_backwards(share.files())
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        gc.set_threshold(20_000, 20, 50)
        if share.is_patient:
            os.nice(LOW_PRIORITY)


@pytest.fixture
def figure(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Tells what the test has measured."""
    return partial(record_property, "figure")


def import_backwards(files: Iterable[Path]) -> None:
    """Where nothing is compiled yet, each of two workers compiles one half, and neither all of it."""
    for path in sorted(files, reverse=True):
        with suppress(Exception, pytest.skip.Exception):  # told when it is collected
            import_module(".".join(path.relative_to(TESTS.parent).with_suffix("").parts))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    return (
        config.stash[SHARE].leaves_out(collection_path) or tiers.leaves_out(collection_path, config) or None
    )


def pytest_itemcollected(item: pytest.Item) -> None:
    """Give a test whose limit is its own more time too, where everything takes longer."""
    if (own := item.get_closest_marker("timeout")) is not None:
        item.add_marker(pytest.mark.timeout(own.args[0] * slowdown()), append=False)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what this tier or slice does not run, and put what is worth most first."""
    if config.getoption("--device") == "cpu":
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]
    for item in items:
        if is_of_a_stack(item.nodeid):
            item.add_marker(pytest.mark.stack)
        elif item.get_closest_marker("stack"):
            raise pytest.UsageError(f"{item.nodeid} starts a stack: its file belongs into OF_STACKS")
    left_out = tiers.choose_items(config, items, work_of, times := read_times())
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    tests: dict[str, list[str]] = {}
    for item in items:
        tests.setdefault(work_of(item.nodeid), []).append(item.nodeid)
    seconds = seconds_of(times, config.getoption("--thorough"))
    failures = config.stash[FAILURES].of
    turns = in_order_of_worth(
        {work: seconds(work, mine) for work, mine in tests.items()},
        {work: max(failures.get(file_of(test), 0.0) for test in mine) for work, mine in tests.items()},
    )
    items.sort(key=lambda item: turns[work_of(item.nodeid)])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config) -> Scheduling:
    scheduling = make_scheduling(config)
    reporter = config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and config.get_verbosity() <= 0:
        config.pluginmanager.register(Progress(reporter, scheduling))
    return scheduling


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Iterator[None]:
    """Stacks that wait for nothing would take time from the tests that follow."""
    yield
    if nextitem is not None and work_of(nextitem.nodeid) != work_of(item.nodeid):
        end_all()


class LeftOut(pytest.Module):
    """Tests of what is not used on a GPU; not even imported, for a host with one may lack numba."""

    def collect(self) -> NoReturn:
        pytest.skip(ABOUT_THE_CPU, allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    is_native = module_path.is_relative_to(TESTS / "engine" / "native")
    if is_native and parent.config.getoption("--device") == "cuda":
        return LeftOut.from_parent(parent, path=module_path)
    return None


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """Where engines of this run compute: cpu or cuda."""
    chosen: str = request.config.getoption("--device")
    if chosen == "cuda":
        import torch

        if not torch.cuda.is_available():
            pytest.skip("--device cuda: this machine has no NVIDIA GPU that torch can use")
    return chosen


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Return whether tests run at their full length."""
    return bool(request.config.getoption("--thorough"))


@pytest.fixture(scope="session")
def cpu_kernels(request: pytest.FixtureRequest) -> None:
    """For tests that are about the kernels of the CPU: packing, numba, the same bits always."""
    if request.config.getoption("--device") == "cuda":
        pytest.skip(ABOUT_THE_CPU)


@pytest.fixture(scope="session")
def on_device(device: str) -> dict[str, str]:
    """Parameters of an engine that computes where this run's engines do; several fit on one GPU."""
    if device == "cpu":
        return {"inflight_device": "cpu"}
    return {"inflight_device": "cuda", "kv_cache_free_gpu_mem_fraction": "0.2"}


@pytest.fixture(scope="session", autouse=True)
def packed_weights_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests pack is gone with them; kernels stay in the user's cache, or each run would compile."""
    from python_backend.engine import build

    directory = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "cache_dir", lambda: directory)
        yield


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Where the default model is kept between runs."""
    if chosen := os.environ.get("INFLIGHT_TEST_DATA_DIR"):
        return Path(chosen)
    from launcher.settings import default_data_dir

    return default_data_dir()


class Unwatched:
    """Long work that nobody watches: a test run is not a terminal."""

    def advance_to(self, done: int) -> None:
        pass

    @contextmanager
    def stage(self, label: str, total_bytes: int | None = None) -> Iterator[Unwatched]:
        yield self


@pytest.fixture(scope="session")
def default_checkpoint(data_dir: Path) -> Path:
    """The default model's checkpoint, fetched if it is not there."""
    from launcher.packaging.models.checkpoint import resolve_checkpoint
    from launcher.settings import StackSettings

    return resolve_checkpoint(StackSettings().model, data_dir, Unwatched()).directory


@pytest.fixture(scope="session")
def stack(data_dir: Path, on_device: dict[str, str]) -> Iterator[RunningStack]:
    """Triton, engine and router with the default model and default settings."""
    from benchmarks.stack import running_stack

    with lasting(running_stack(on_device, data_dir=data_dir)) as running:
        yield running
