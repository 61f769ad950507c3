"""How tests are divided among the workers of `pytest -n`, and in which order they are run.

In a run of all tests by three workers or more the last one is patient. Tests with servers often wait, and
meanwhile it runs, at a low priority, those in which nothing has a deadline: most of them only compute.
Neither it nor the others collect tests that they do not run. What is left to whoever has time, all collect.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
# Of files that share a fixture. While the first stack compiles the CPU's kernels, other workers do something
# that needs none, instead of waiting for them.
_WITHOUT_KERNELS = "tests/engine/cuda/"
# The longest single test.
_IMAGES = "tests/deploy/images/test_serving.py"
# The longest work is begun first, so that the workers end together.
LONGEST_FIRST = (_USUAL, _IMAGES, _WITHOUT_KERNELS, *SHARING, *WITH_STACKS_OF_THEIR_OWN)
LONG_WITHOUT_STACKS = ("tests/engine/", "tests/router/test_fuzz.py", "tests/simulator/")
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
    """Tests with the same answer are run by the same worker."""
    if nodeid.startswith(_WITHOUT_KERNELS):
        return _WITHOUT_KERNELS
    file = nodeid.partition("::")[0]
    if not is_of_a_stack(nodeid) or file in WITH_STACKS_OF_THEIR_OWN:
        return file
    return next((kind for kind, files in SHARING.items() if nodeid.startswith(files)), _USUAL)


def turn_of(nodeid: str) -> int:
    if (work := work_of(nodeid)) in LONGEST_FIRST:
        return LONGEST_FIRST.index(work)
    if nodeid.startswith(LEFT_TO_ALL):
        return len(LONGEST_FIRST) + 2
    return len(LONGEST_FIRST) + (not nodeid.startswith(LONG_WITHOUT_STACKS))


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
    """For pytest -n: one stack of a kind, and what a file prepares is prepared once."""
    from xdist.workermanage import parse_tx_spec_config

    def told(tests: int) -> None:
        session = config.pluginmanager.get_plugin("session")
        if session is not None:  # of which progress is a part
            session.testscollected = tests

    return Scheduling(len(parse_tx_spec_config(config)), work_of, told)
