"""A whole stack with keys, whose engine makes up its tokens, and the sheet that each test leaves clean."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from tokenizers import Tokenizer

from benchmarks.stack import RunningStack, running_stack
from launcher.stack.runs import SHARED_MEMORY_DIR, SHARED_MEMORY_PREFIX
from router.core.tenant import Limits, Role, Scope
from router.tenants.rbac import SYSTEM
from router.tenants.tenancy import open_administration
from tests.lasting import lasting
from tests.pace import patience
from tests.waiting import until

TOKENS_PER_S = 8_000
LONGEST_DRAIN_S = 150.0  # more than a busy machine needs for any answer of these tests
DRAINING = "test_draining.py"  # ends the stack


def fixtures_of(item: pytest.Item) -> tuple[str, ...]:
    return tuple(getattr(item, "fixturenames", ()))


def turn_of(item: pytest.Item) -> tuple[bool, bool]:
    """Those in which something of the shared stack dies come last."""
    return item.path.name == DRAINING, "mortal" in fixtures_of(item)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    ours = [item for item in items if Path(__file__).parent in item.path.parents]
    for item in ours:
        item.add_marker(pytest.mark.timeout(patience(900 if config.getoption("--thorough") else 180)))
    sharing = {id(item) for item in ours if "quick" in fixtures_of(item)}
    places = [place for place, item in enumerate(items) if id(item) in sharing]
    ordered = sorted((items[place] for place in places), key=turn_of)
    for place, item in zip(places, ordered, strict=True):
        items[place] = item


@dataclass
class Fortress:
    """The stack under attack, the key of an ordinary tenant, and what its processes hold."""

    stack: RunningStack
    state_dir: Path
    tenant: str
    key: str
    tokenizer: Tokenizer

    @property
    def headers(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.key}"}

    @property
    def port(self) -> int:
        return int(self.stack.url.rpartition(":")[2])

    def processes(self) -> list[psutil.Process]:
        return psutil.Process(self.stack.process.pid).children(recursive=True)

    def process(self, word: str) -> psutil.Process:
        (found,) = self.stack.processes(word)
        return found

    @property
    def router(self) -> psutil.Process:
        return self.process(" -m router ")

    def shared_regions(self) -> set[Path]:
        """Of this stack alone: others may run on this machine."""
        return set(SHARED_MEMORY_DIR.glob(f"{SHARED_MEMORY_PREFIX}{self.stack.logs.name}_*"))

    def client(self) -> httpx.AsyncClient:
        limits = httpx.Limits(max_connections=4000, max_keepalive_connections=100)
        return httpx.AsyncClient(
            base_url=self.stack.url,
            headers=self.headers,
            timeout=patience(60),
            limits=limits,
            trust_env=False,
            verify=False,
        )

    def completion(self, tokens: int, **fields: object) -> dict[str, object]:
        body = {"model": self.stack.model, "prompt": "Hello", "max_tokens": tokens, "ignore_eos": True}
        return {**body, **fields}

    def text_of(self, tokens: int) -> str:
        """What the engine says to `completion`, to the last character."""
        first_id = self.tokenizer.encode("Hello").ids[0]
        return self.tokenizer.decode([first_id + position % 50 for position in range(tokens)])

    def new_tenant(
        self, name: str, limits: Limits | None = None, scopes: frozenset[Scope] | None = None
    ) -> str:
        """A key of a tenant of its own; the router knows it within a second."""
        with open_administration(self.state_dir) as admin:
            tenant = admin.create_organisation(SYSTEM, name)
            if limits is not None:
                admin.set_limits(SYSTEM, tenant.id, limits)
            user = admin.create_user(SYSTEM, tenant.id, "owner", Role.OWNER)
            _, key = admin.create_key(SYSTEM, tenant.id, user.id, name, scopes or frozenset(Scope))
        return key

    def billed(self) -> tuple[int, int]:
        """Prompt and completion tokens of all tenants, in the store."""
        with open_administration(self.state_dir) as admin:
            sums = admin.usage(SYSTEM, None, (), "2000-01-01", "2999-01-01")
        return (sums[0].prompt_tokens, sums[0].completion_tokens) if sums else (0, 0)

    async def counted(self) -> tuple[int, int]:
        """The same, as the router's metrics have it."""
        async with self.client() as http:
            text = (await http.get("/metrics")).text
        return (
            int(_sum(text, "inflight_prompt_tokens_total")),
            int(_sum(text, "inflight_completion_tokens_total")),
        )

    async def stalls(self) -> float:
        """How often the router's event loop has answered nobody for half a second or longer."""
        async with self.client() as http:
            text = (await http.get("/metrics")).text
        family = "inflight_event_loop_stall_seconds"
        asked, soon = (
            float(text.partition(f"\n{family}{end} ")[2].partition("\n")[0])
            for end in ("_count", '_bucket{le="0.5"}')
        )
        return asked - soon

    async def in_flight(self) -> float:
        async with self.client() as http:
            return _sum((await http.get("/metrics")).text, "inflight_requests_in_flight")


def _sum(text: str, family: str) -> float:
    return sum(float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{family}{{"))


def cpu_of(process: psutil.Process) -> float:
    """Of all its threads, by the scheduler's own clock: the usual one ticks every 10 ms."""
    spent_ns = 0
    for thread in Path(f"/proc/{process.pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it ended just now
            spent_ns += int((thread / "schedstat").read_text().split()[0])
    return spent_ns / 1e9


@contextmanager
def fortress(folder: Path, data_dir: Path, tokenizer: Tokenizer) -> Iterator[Fortress]:
    state_dir = folder / "state"
    with open_administration(state_dir) as admin:
        tenant = admin.create_organisation(SYSTEM, "acme")
        user = admin.create_user(SYSTEM, tenant.id, "ann", Role.MEMBER)
        _, key = admin.create_key(SYSTEM, tenant.id, user.id, "laptop")
    engine = {"inflight_runtime": "synthetic", "inflight_synthetic_tokens_per_s": str(TOKENS_PER_S)}
    settings = {"state_dir": str(state_dir), "metrics_open": True}
    with running_stack(
        engine, data_dir=data_dir, router_settings=settings, embeddings=False, drain_timeout_s=LONGEST_DRAIN_S
    ) as running:
        yield Fortress(running, state_dir, tenant.id, key, tokenizer)


@pytest.fixture(scope="session")
def tokenizer(default_checkpoint: Path) -> Tokenizer:
    return Tokenizer.from_file(str(default_checkpoint / "tokenizer.json"))


@pytest.fixture(scope="session")
def quick(
    tmp_path_factory: pytest.TempPathFactory, data_dir: Path, tokenizer: Tokenizer
) -> Iterator[Fortress]:
    with lasting(fortress(tmp_path_factory.mktemp("fortress"), data_dir, tokenizer)) as running:
        yield running


@pytest.fixture(scope="session")
def mortal(quick: Fortress) -> Fortress:
    """For tests that kill its router, and then stop it in the middle of everything."""
    return quick


@pytest.fixture
async def sheet(quick: Fortress) -> AsyncIterator[Fortress]:
    """The stack; after the test, nothing is lost, nothing leaks and nobody died."""
    before = {each.pid for each in quick.processes()}
    regions, files = quick.shared_regions(), quick.router.num_fds()
    yield quick

    async def is_settled() -> bool:
        return await quick.in_flight() == 0 and quick.stack.used_blocks() == 0

    async def is_billed() -> bool:
        return quick.billed() == await quick.counted()

    async def has_closed_its_files() -> bool:
        return quick.router.num_fds() <= files + 8  # gRPC and the store keep a few at hand

    await until(is_settled, "I2: requests or blocks of the cache are still held")
    await until(is_billed, "I1: what was billed is not what was delivered")
    assert {each.pid for each in quick.processes()} == before, "I3: a process died"
    assert quick.shared_regions() <= regions, "I4: shared memory was left behind"
    await until(has_closed_its_files, "I4: sockets or files were left open")
    assert quick.key not in quick.stack.output(), "I5: a secret is in the log"
