"""Programs beside the router stand still while answers are made, and come to an end all the same."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from router.core import side_work
from router.core.side_work import SideWork
from tests.fakes.pipeline import words
from tests.router.running import RunningRouter
from tests.waiting import until

WAITS = [sys.executable, "-c", "import sys; sys.stdin.read()"]
NEVER_S = 3600.0


@pytest.fixture
def program() -> Iterator[int]:
    with subprocess.Popen(WAITS, stdin=subprocess.PIPE, start_new_session=True) as child:
        yield child.pid
        child.kill()


@pytest.fixture
def no_spells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_work, "_MOST_STILL_S", NEVER_S)


def is_still(program: int) -> bool:
    return Path(f"/proc/{program}/stat").read_text().rpartition(") ")[2].startswith("T")


def answering(work: SideWork, is_answering: bool) -> None:
    work.is_answering = is_answering
    work.look()


async def test_a_program_stands_still_while_an_answer_is_made(no_spells: None, program: int) -> None:
    work = SideWork()
    work.begin(program)
    assert not is_still(program)
    answering(work, True)
    await until(lambda: is_still(program))
    answering(work, False)
    await until(lambda: not is_still(program))


async def test_one_that_begins_meanwhile_stands_still_too_and_goes_on_at_its_end(
    no_spells: None, program: int
) -> None:
    work = SideWork()
    answering(work, True)
    work.begin(program)
    await until(lambda: is_still(program))
    work.end(program)
    await until(lambda: not is_still(program))


async def test_it_works_for_a_spell_however_many_answers_there_are(
    program: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_work, "_SPELL_S", NEVER_S)
    work = SideWork()
    work.begin(program)
    answering(work, True)
    await until(lambda: is_still(program))
    for _ in range(10):  # moments in between do not put the spell off
        answering(work, False)
        answering(work, True)
    await until(lambda: work._is_spell)  # on a busy machine the program is late to stand still and to go on
    await until(lambda: not is_still(program))
    answering(work, False)
    answering(work, True)
    assert not is_still(program)  # the spell has not ended yet


async def test_a_spell_ends(program: int) -> None:
    work = SideWork()
    answering(work, True)
    work.begin(program)
    for is_wanted in (True, False, True):
        await until(lambda: is_still(program) is is_wanted)  # noqa: B023 (awaited at once)


async def test_with_many_cores_nobody_stands_still(program: int) -> None:
    work = SideWork(stands_still=False)
    work.begin(program)
    answering(work, True)
    assert not is_still(program)
    assert work._spell_due is None


async def test_a_program_that_has_ended_is_no_error() -> None:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "", start_new_session=True)
    await child.wait()
    work = SideWork()
    work.begin(child.pid)
    answering(work, True)
    answering(work, False)
    work.end(child.pid)


ROUTER = """
import asyncio, os, signal, sys
from pathlib import Path
from router.content.documents.document_program import TABLE
from router.content.documents.readers import DocumentLimits, DocumentReader

async def main():
    reader = DocumentReader("files", DocumentLimits())
    await reader.read("acme", TABLE, b"a,b")
    [program] = reader._programs.idle
    os.killpg(program.pid, signal.SIGSTOP)
    print(program.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""


async def test_a_program_that_stands_still_ends_with_a_router_that_is_killed() -> None:
    root = Path(__file__).parents[2]
    router = await asyncio.create_subprocess_exec(
        sys.executable, "-c", ROUTER, cwd=root, stdout=asyncio.subprocess.PIPE
    )
    assert router.stdout is not None
    program = int(await router.stdout.readline())
    await router.wait()
    await until(lambda: not Path(f"/proc/{program}").exists() or is_dead(program))


def is_dead(program: int) -> bool:
    """Ended, though nobody has asked how."""
    return Path(f"/proc/{program}/stat").read_text().rpartition(") ")[2].startswith("Z")


async def test_answers_of_the_router_make_programs_stand_still(
    router: RunningRouter, no_spells: None, program: int
) -> None:
    work = router.permits._side_work
    work.begin(program)
    released = asyncio.Event()
    router.pipeline.script = lambda call: [released, *words("done")]
    asking = asyncio.create_task(router.chat())
    await until(lambda: is_still(program))
    released.set()
    assert (await asking).status_code == 200
    await until(lambda: not is_still(program))
