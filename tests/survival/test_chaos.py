"""A short run of `inflight chaos`: whatever is killed, frozen or cut off, nothing is lost or left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.commands.chaos.arena import Order
from launcher.commands.chaos.campaign import Load
from launcher.commands.chaos.command import SYNTHETIC, run_chaos
from loadtest.chaos.plan import chosen

# Of those whose end does not depend on how busy the machine is; a run by hand has all of them.
FAULTS = ("kill-engine", "drop-triton")
# With --thorough: test_ledger.py has killed routers and a full disk too, test_connections.py clients that
# leave, and tests/stack/test_reviving.py a frozen engine.
HOLDING_ON = ("drop-clients", "kill-router", "freeze-engine", "full-disk")
SEED = 22
PATIENCE_S = 150.0  # for a machine that has other things to do: no speed is asserted here


@pytest.mark.timeout(600)
def test_after_every_fault_of_a_seeded_run_the_sheet_is_clean(
    data_dir: Path, thorough: bool, figure: Callable[[str], None]
) -> None:
    load = Load(per_s=3.0, tokens=40, seconds=3.0, recovery_limit_s=PATIENCE_S)
    order = Order(None, data_dir, SYNTHETIC, frozenset())
    faults = (*FAULTS, *HOLDING_ON) if thorough else FAULTS
    most = 5 * len(faults) if thorough else len(faults)
    results, skipped = run_chaos(chosen(faults), SEED, 3600, order, load, most)
    assert not skipped
    assert [each.violations for each in results] == [[]] * most
    assert sorted({each.episode.name for each in results}) == sorted(faults)
    assert all(each.outcomes["whole"] for each in results)
    figure(f"{most} faults in a row, the sheet clean after each")
