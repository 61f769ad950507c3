"""How tests are divided among the workers of `pytest -n`, and in which order they are run.

In a run of all tests by three workers or more the last one is patient. Tests with servers often wait, and
meanwhile it runs, at a low priority, those in which nothing has a deadline: most of them only compute.
Neither it nor the others collect tests that they do not run.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

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
# The longest work is begun first, so that the workers end together.
LONGEST_FIRST = (_USUAL, _WITHOUT_KERNELS, *SHARING, *WITH_STACKS_OF_THEIR_OWN)
LONG_WITHOUT_STACKS = ("tests/engine/", "tests/router/test_fuzz.py", "tests/simulator/")
# Nothing here goes otherwise where a processor comes late. What imports torch is among them, so that no other
# worker does. There is more like it: as much of it is here as is done before the others end.
UNHURRIED = (
    "tests/benchmarks/torch_model/",
    "tests/costs/",
    "tests/deploy/",
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
    return len(LONGEST_FIRST) + (not nodeid.startswith(LONG_WITHOUT_STACKS))


def runs_all(config: pytest.Config) -> bool:
    device: str = config.getoption("--device")
    paths = [Path(each).resolve() for each in config.args]
    return device == "cpu" and paths == [TESTS]


def is_patient(worker: Any) -> bool:
    """By what xdist says of a worker."""
    return bool(worker["workerid"] == f"gw{worker['workercount'] - 1}")


class Share:
    """What this process has of the tests."""

    def __init__(self, config: pytest.Config) -> None:
        worker: dict[str, Any] = getattr(config, "workerinput", {})
        is_all = bool(worker) and runs_all(config)
        self.is_divided = is_all and worker["workercount"] > 2
        self.is_patient = self.is_divided and is_patient(worker)
        self.imports_backwards = is_all and worker["workerid"] == "gw1"

    def leaves_out(self, path: Path) -> bool:
        if not self.is_divided or not path.is_relative_to(TESTS):
            return False
        place = path.relative_to(TESTS.parent).as_posix() + "/" * path.is_dir()
        if path.is_dir() and any(each.startswith(place) for each in UNHURRIED if each != place):
            return False
        return place.startswith(UNHURRIED) != self.is_patient

    def files(self) -> Iterator[Path]:
        return (path for path in TESTS.rglob("test_*.py") if not self.leaves_out(path))


def make_scheduling(config: pytest.Config, log: object) -> Any:
    """For pytest -n: one stack of a kind, and what a file prepares is prepared once."""
    from xdist.scheduler import LoadScopeScheduling

    usual, patient = (LoadScopeScheduling(config, log) for _ in range(2))
    for each in (usual, patient):
        each._split_scope = work_of
    if usual.numnodes < 3 or not runs_all(config):
        return usual
    usual.numnodes, patient.numnodes = usual.numnodes - 1, 1
    return TwoShares(config, usual, patient)


class TwoShares:
    """xdist's scheduling of workers with tests of their own: each share is divided by itself."""

    def __init__(self, config: pytest.Config, usual: Any, patient: Any) -> None:
        self._config = config
        self._usual = usual
        self._patient = patient
        self._both = (usual, patient)

    def _of(self, node: Any) -> Any:
        return self._patient if is_patient(node.workerinput) else self._usual

    @property
    def nodes(self) -> list[Any]:
        return [node for each in self._both for node in each.nodes]

    @property
    def collection_is_completed(self) -> bool:
        """Whether anybody can begin: the usual workers do not wait for the patient one, nor it for them."""
        return any(each.collection_is_completed for each in self._both)

    @property
    def tests_finished(self) -> bool:
        return all(each.tests_finished for each in self._both)

    @property
    def has_pending(self) -> bool:
        return any(each.has_pending for each in self._both)

    def add_node(self, node: Any) -> None:
        self._of(node).add_node(node)

    def remove_node(self, node: Any) -> Any:
        return self._of(node).remove_node(node)

    def add_node_collection(self, node: Any, collection: Sequence[str]) -> None:
        self._of(node).add_node_collection(node, collection)

    def mark_test_complete(self, node: Any, item_index: int, duration: float = 0) -> None:
        self._of(node).mark_test_complete(node, item_index, duration)

    def mark_test_pending(self, item: str) -> None:
        raise NotImplementedError

    def remove_pending_tests_from_node(self, node: Any, indices: Sequence[int]) -> None:
        raise NotImplementedError

    def schedule(self) -> None:
        for each in self._both:
            if each.collection_is_completed:
                each.schedule()
        session = self._config.pluginmanager.get_plugin("session")
        if session is not None:  # of which progress is a part
            session.testscollected = sum(len(each.collection or ()) for each in self._both)
