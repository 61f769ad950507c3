"""How tests are divided among the workers of `pytest -n`, and in which order they are run.

In a run of all tests by three workers or more the last one is patient. Tests with servers often wait, and
meanwhile it runs, at a low priority, tests in which nothing has a deadline: most of them only compute.
Neither the patient worker nor the others collect tests that they do not run; LEFT_TO_ALL is for any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.recorded_times import Times, file_of, read_times
from tests.scheduling import Scheduling

if TYPE_CHECKING:
    import pytest

TESTS = Path(__file__).resolve().parent
# Where tests start a real Triton, on their own or with the fixtures of conftest.py.
OF_STACKS = (
    "tests/stack/",
    "tests/survival/",
    "tests/embeddings/test_in_triton.py",
    "tests/launcher/stack/test_stack.py",
)
# Files that share stacks beside the usual one, each kind for one worker; and those that share none.
SHARING = {
    "releases": tuple(
        f"tests/stack/test_{name}.py"
        for name in ("adapters", "broken_canaries", "console", "releases", "tensor_models", "tuning")
    ),
    "survival": ("tests/survival/",),
}
WITH_STACKS_OF_THEIR_OWN = (
    *(
        f"tests/stack/test_{name}.py"
        for name in ("vllm_runtime", "split", "reviving", "objectives", "replicas", "llm_runtime")
    ),
    "tests/launcher/stack/test_stack.py",
    "tests/survival/test_chaos.py",
)
_USUAL = "stack"
_IMAGES = "tests/deploy/images/test_serving.py"
# Files that share a fixture, which one worker prepares.
_TOGETHER = ("tests/engine/cuda/",)
# Nothing here goes otherwise where a processor comes late. What imports torch is among them, so that no other
# worker does.
UNHURRIED = (
    _IMAGES,
    "tests/benchmarks/torch_model/",
    "tests/embeddings/test_decoders.py",
    "tests/embeddings/test_families.py",
    "tests/embeddings/test_model.py",
    "tests/embeddings/test_products.py",
    "tests/embeddings/test_torch_encoder.py",
    "tests/engine/adapters/",
    "tests/engine/checkpoint/",
    "tests/engine/cuda/",
    "tests/engine/models/",
    "tests/engine/native/test_amx.py",
    "tests/engine/native/test_microkernel.py",
    "tests/engine/native/test_model.py",
    "tests/engine/native/test_same_bits_in_the_engine.py",
    "tests/engine/runtimes/trtllm/",
    "tests/engine/sampling/",
    "tests/engine/steps/",
    "tests/engine/tasks/",
    "tests/engine/test_build.py",
    "tests/engine/test_engine_properties.py",
)
# Nor here: it comes last, and is for whoever has nothing else to do.
LEFT_TO_ALL = (
    "tests/costs/",
    "tests/deploy/",
    "tests/launcher/commands/release/test_addition.py",
    "tests/loadtest/report/",
    "tests/router/routing/test_chat_template.py",
    "tests/router/routing/test_checkpoint.py",
    "tests/router/store/test_migrate.py",
    "tests/sharing/",
    "tests/test_architecture.py",
    "tests/test_docs.py",
    "tests/test_documented_commands.py",
    "tests/text/",
    "tests/wire/",
)
LOW_PRIORITY = 10  # a tenth of a processor that others want, too


def is_of_a_stack(nodeid: str) -> bool:
    return nodeid.startswith(OF_STACKS)


def work_of(nodeid: str) -> str:
    """Return the work that a test belongs to: tests with the same answer are run by the same worker."""
    file = file_of(nodeid)
    if folder := next((each for each in _TOGETHER if file.startswith(each)), None):
        return folder
    if not is_of_a_stack(nodeid) or file in WITH_STACKS_OF_THEIR_OWN:
        return file
    return next((kind for kind, files in SHARING.items() if nodeid.startswith(files)), _USUAL)


def seconds_of(times: Mapping[str, Times], thorough: bool) -> Callable[[str, Sequence[str]], float]:
    """Return what tells the recorded seconds of a work, from the files that its tests are in."""
    average_s = sum(each.of_tier(thorough) for each in times.values()) / max(1, len(times))

    def seconds(work: str, tests: Sequence[str]) -> float:
        files = {file_of(test) for test in tests}
        return sum(times[file].of_tier(thorough) if file in times else average_s for file in files)

    return seconds


def in_order_of_worth(
    works: Mapping[str, float], failures: Mapping[str, float]
) -> dict[str, tuple[float, float, str]]:
    """Return sort keys of works: what failed lately comes first, then what costs least.

    `works` has the seconds of each, `failures` how often each failed lately.
    """
    return {work: (-failures.get(work, 0.0), seconds, work) for work, seconds in works.items()}


def runs_all(config: pytest.Config) -> bool:
    device: str = config.getoption("--device")
    paths = [Path(each).resolve() for each in config.args]
    return device == "cpu" and paths == [TESTS]


class Share:
    """What this process has of the tests."""

    def __init__(self, config: pytest.Config) -> None:
        worker: dict[str, Any] = getattr(config, "workerinput", {})
        is_all = bool(worker) and runs_all(config)
        self.is_divided = is_all and worker["workercount"] > 2
        self.is_patient = self.is_divided and worker["workerid"] == f"gw{worker['workercount'] - 1}"
        self.imports_backwards = is_all and worker["workerid"] == "gw1"

    def leaves_out(self, path: Path) -> bool:
        if not self.is_divided or not path.is_relative_to(TESTS):
            return False
        place = path.relative_to(TESTS.parent).as_posix() + "/" * path.is_dir()
        divided = (*UNHURRIED, *LEFT_TO_ALL)
        if path.is_dir() and any(each.startswith(place) for each in divided if each != place):
            return False
        if place.startswith(UNHURRIED):
            return not self.is_patient
        return self.is_patient and not place.startswith(LEFT_TO_ALL)

    def files(self) -> Iterator[Path]:
        return (path for path in TESTS.rglob("test_*.py") if not self.leaves_out(path))


def make_scheduling(config: pytest.Config) -> Scheduling:
    """Return the scheduling of `pytest -n`: one worker runs all tests that share a stack or a file."""
    from xdist.workermanage import parse_tx_spec_config

    def told(tests: int) -> None:
        session = config.pluginmanager.get_plugin("session")
        if session is not None:
            session.testscollected = tests

    seconds = seconds_of(read_times(), config.getoption("--thorough"))
    return Scheduling(len(parse_tx_spec_config(config)), work_of, told, seconds)
