"""The version before this one becomes this one, container by container, while it answers: make upgrade.

Routers first, which know both kinds of Tritons; then Tritons. In the order of docs/deploy.md.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import pytest

from benchmarks.stack import free_port
from deploy.compose_file import ROOT
from tests.router.tenants.postgres import running_postgres
from tests.stack.releasing import quick_engine
from tests.stack.splitting import FIRST, SECOND, Container, Split, end, rewrite, running_redis, write_settings
from tests.stack.test_split import ANSWER_TOKENS, read_stream, replicas_within
from tests.stack.tiny_models import write_tiny_model
from tests.upgrade.recorded import answered_by, file_of, messages_in, said_by, shape_of
from tests.upgrade.versions import THIS, Version, previous_version

pytestmark = pytest.mark.timeout(7200)
START_LIMIT_S = 3600.0  # the kernels of both versions may have to be compiled
STREAMS = 16


@dataclass(frozen=True)
class Upgrade:
    """`split` has the router and the Triton of the version before."""

    before: Version
    split: Split
    router: Container
    triton: Container
    store_url: str
    closing: ExitStack

    @property
    def new_url(self) -> str:
        return f"http://127.0.0.1:{self.split.ports['http-2']}"

    def start(self, container: Container) -> None:
        container.start()
        self.closing.callback(end, container)


@pytest.fixture(scope="module")
def upgrade(
    tmp_path_factory: pytest.TempPathFactory, default_checkpoint: Path, data_dir: Path
) -> Iterator[Upgrade]:
    folder = tmp_path_factory.mktemp("upgrade")
    before = previous_version(data_dir / "versions")
    now = Version(ROOT, THIS)
    ports = {name: free_port() for name in ("http", "grpc", "http-2", "grpc-2", "triton", "metrics", "redis")}
    for version in (before, now):  # as an operator does before anything is replaced
        files = version.root / "deploy" / "compose"
        shutil.copytree(files, folder / "deploy" / "compose", dirs_exist_ok=True)
        subprocess.run(["sh", files / "setup.sh", folder], check=True, stdout=subprocess.DEVNULL)
    secrets = folder / "deploy" / "compose" / "secrets"
    (folder / "tmp").mkdir()
    write_tiny_model(folder / "data" / "tiny", default_checkpoint)
    with ExitStack() as closing:
        store_url = closing.enter_context(running_postgres()).new_database("upgrade")
        rewrite(secrets / "store_url", store_url)
        closing.enter_context(running_redis(folder, ports["redis"]))
        redis_url = (secrets / "redis_url").read_text()
        rewrite(secrets / "redis_url", redis_url.replace("redis:6379", f"127.0.0.1:{ports['redis']}"))
        write_settings(folder, quick_engine(), shares_state=True)
        split = Split(
            folder, router_of(before, folder, ports, 1), triton_of(before, folder, ports, FIRST), ports
        )
        triton = triton_of(now, folder, ports, SECOND)
        upgrade = Upgrade(before, split, router_of(now, folder, ports, 2), triton, store_url, closing)
        both = f"--triton={SECOND}:{ports['triton']}"
        upgrade.router.command.extend([both, "--plain-tritons"])
        for container in (split.triton, split.router):
            upgrade.start(container)
        split.wait_for(200, START_LIMIT_S)
        yield upgrade


def router_of(version: Version, folder: Path, ports: dict[str, int], number: int) -> Container:
    suffix = "" if number == 1 else f"-{number}"
    return version.container(
        "router",
        folder,
        f"router-{version.name}",
        ("--port=8080", f"--port={ports[f'http{suffix}']}"),
        ("--grpc-port=8081", f"--grpc-port={ports[f'grpc{suffix}']}"),
        ("triton:8001", f"{FIRST}:{ports['triton']}"),
    )


def triton_of(version: Version, folder: Path, ports: dict[str, int], host: str) -> Container:
    return version.container(
        "triton-cpu",
        folder,
        f"triton-{version.name}",
        ("--host=0.0.0.0", f"--host={host}"),
        ("--grpc-port=8001", f"--grpc-port={ports['triton']}"),
        ("--metrics-port=8002", f"--metrics-port={ports['metrics']}"),
        ("--model=smollm2-135m-instruct", f"--model={folder / 'data' / 'tiny'}"),
        ("--embeddings=all-minilm-l6-v2", "--embeddings="),
    )


def test_what_is_recorded_of_the_version_before_is_what_it_says(upgrade: Upgrade) -> None:
    """Without a file one is made, to be added to the tests."""
    said = said_by(upgrade.before)
    answers = answered_by(f"{FIRST}:{upgrade.split.ports['triton']}", said)
    facts = (upgrade.split.folder / "state" / "deployment.json").read_text()
    file = file_of(upgrade.before.name)
    if not file.is_file():
        file.write_text(json.dumps({**said, "answers": answers, "facts": facts}, indent=1) + "\n")
    kept = json.loads(file.read_text())
    for part in ("schema", "contract", "release"):
        assert kept[part] == said[part]
    for part in ("requests", "controls"):
        assert messages_in(kept[part]) == messages_in(said[part])
    assert shape_of(kept["answers"]) == shape_of(answers)
    assert json.loads(kept["facts"]).keys() == json.loads(facts).keys()


def test_a_new_router_serves_beside_an_old_one_on_one_store_and_with_an_old_triton(upgrade: Upgrade) -> None:
    split, key = upgrade.split, upgrade.split.secret("admin_key")
    assert split.chat(key)[0] == 200
    upgrade.start(upgrade.router)
    split.wait_for(200, START_LIMIT_S, url=upgrade.new_url)
    for url in ("", upgrade.new_url):
        status, answer = split.chat(key, url)
        assert status == 200, answer
        assert json.loads(answer)["usage"]["completion_tokens"] >= 1


def test_the_store_was_backed_up_before_the_new_router_migrated_it(upgrade: Upgrade) -> None:
    (file,) = (upgrade.split.folder / "state" / "backups").iterdir()
    assert file.name.startswith("schema-")
    assert "the store is migrated from schema" in upgrade.router.output


def test_what_one_router_is_told_the_other_knows_whichever_of_them_is_old(upgrade: Upgrade) -> None:
    split = upgrade.split
    for here, there, name in (("", upgrade.new_url, "by-old"), (upgrade.new_url, "", "by-new")):
        tenant = f"/admin/tenants/{told(split, here, '/admin/tenants', name=name)['id']}"
        user = told(split, here, f"{tenant}/users", name="ann", role="owner")
        made = told(split, here, f"{tenant}/keys", user_id=user["id"], name="laptop")["key"]
        split.wait_until(partial(is_answered, split, made, there), START_LIMIT_S)


def told(split: Split, url: str, path: str, **body: str) -> dict[str, str]:
    status, answer = split.ask(path, split.secret("admin_key"), body, url)
    assert status in (200, 201), answer
    made: dict[str, str] = json.loads(answer)
    return made


def is_answered(split: Split, key: str, url: str) -> bool:
    return split.chat(key, url)[0] == 200


async def test_tritons_are_replaced_under_streams_and_none_is_lost(upgrade: Upgrade) -> None:
    """Both kinds serve; the old one is stopped as containers are, and what ran there goes on at the new."""
    split = upgrade.split
    first, second = "triton-0", "triton-1"  # in the order of the command
    upgrade.start(upgrade.triton)
    async with httpx.AsyncClient(base_url=upgrade.new_url, timeout=600, headers=split.key_header()) as http:
        assert await replicas_within(http, START_LIMIT_S, {first, second}) == {first, second}
        streams = [asyncio.create_task(read_stream(http)) for _ in range(STREAMS)]
        await asyncio.wait(streams, return_when=asyncio.FIRST_COMPLETED)
        late = [asyncio.create_task(read_stream(http)) for _ in range(STREAMS)]
        assert await asyncio.to_thread(split.triton.stop) == 0, split.triton.output
        assert await asyncio.gather(*streams, *late) == [ANSWER_TOKENS] * (2 * STREAMS)
        assert await replicas_within(http, START_LIMIT_S, {second}) == {second}
    assert "What Triton serves has changed" not in upgrade.router.output, (
        "the new Triton serves what the old one did"
    )


def test_an_old_router_that_is_started_late_says_that_the_store_is_newer(upgrade: Upgrade) -> None:
    split = upgrade.split
    assert split.router.stop() == 0, split.router.output
    split.router.start()
    split.wait_until(lambda: split.router.process.poll() is not None, START_LIMIT_S)
    assert "which a newer version of Inflight wrote" in split.router.output


def test_the_old_version_serves_again_after_a_downgrade(upgrade: Upgrade) -> None:
    split, key = upgrade.split, upgrade.split.secret("admin_key")
    for container in (upgrade.router, upgrade.triton):
        assert container.stop() == 0, container.output
    (file,) = (split.folder / "state" / "backups").iterdir()
    split.inflight("downgrade", "--to", file.name.split("-")[1], "--yes")
    for container in (split.triton, split.router):
        container.start()
    split.wait_for(200, START_LIMIT_S)
    assert split.chat(key)[0] == 200
