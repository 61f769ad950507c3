from __future__ import annotations

import sys
from pathlib import Path

import pytest

from launcher.commands.loadtest import locust_process
from launcher.commands.loadtest.locust_process import LocustMissing, LocustProcess, Web, locust_command


def test_locust_is_headless_without_a_page_and_listens_on_this_machine_alone_with_one() -> None:
    folder = Path("out")
    options, extra = {"shape": "ramp"}, ["-L", "DEBUG"]
    headless = locust_command("http://h", 3, 12.4, folder, options, ["by-tenant"], extra=extra)
    assert {"--headless", "--by-tenant"} <= set(headless)
    assert headless[-2:] == extra
    assert headless[headless.index("--run-time") + 1] == "12s"
    assert headless[headless.index("--shape") + 1] == "ramp"
    paged = locust_command("http://h", 3, 12, folder, {}, web=Web(port=9))
    assert "--headless" not in paged
    assert paged[paged.index("--web-host") + 1] == "127.0.0.1"


def test_a_missing_locust_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locust_process, "find_spec", lambda name: None)
    with pytest.raises(LocustMissing, match=r"inflight\[loadtest\]"):
        locust_process.check_installed()


def test_locust_is_stopped_as_by_ctrl_c_and_its_last_output_is_kept(tmp_path: Path) -> None:
    waits = "try:\n time.sleep(60)\nexcept KeyboardInterrupt:\n print('bye')"
    code = f"import time\nprint('here', flush=True)\n{waits}"
    process = LocustProcess([sys.executable, "-c", code], tmp_path / "log")
    while "here" not in process.last_words():
        assert not process.wait(0.02)
    process.stop()
    assert process.status == 0
    assert process.last_words() == ["here", "bye"]
