"""What the servers of a stack are there for, as their environment says it."""

from __future__ import annotations

from pathlib import Path

from launcher.stack.pools import share_of_pools


def test_the_first_servers_are_for_prompts_and_the_others_answer(tmp_path: Path) -> None:
    told = [share_of_pools(number, 1, tmp_path) for number in range(3)]
    assert [each["INFLIGHT_POOL"] for each in told] == ["prefill", "decode", "decode"]
    assert {each["INFLIGHT_KV_FOLDER"] for each in told} == {str(tmp_path / "kv")}
    assert (tmp_path / "kv").stat().st_mode & 0o777 == 0o700


def test_nothing_is_said_where_all_servers_do_the_same(tmp_path: Path) -> None:
    assert share_of_pools(0, 0, tmp_path) == {}
    assert not list(tmp_path.iterdir())
