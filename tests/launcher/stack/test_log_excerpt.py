"""Which log lines are shown when a process fails."""

from __future__ import annotations

from launcher.stack.log_excerpt import failure_lines, last_lines

LOG = """\
E1115 02:02:33.883029 6536 server.cc:241] "CudaDriverHelper has not been initialized."
I1115 02:02:33.884730 6536 model_lifecycle.cc:472] "loading: echo:1"
E1115 02:02:34.000000 6536 model_lifecycle.cc:642] "failed to load 'echo' version 1: Internal: no weights

At:
  /models/echo/1/model.py(9): initialize
"
I1115 02:02:35.302116 6536 server.cc:631]
+---------+--------+
| Backend | Path   |
+---------+--------+
""".splitlines()


def test_errors_are_shown_with_the_lines_they_continue_on() -> None:
    lines = failure_lines(LOG)
    assert lines[0].endswith("no weights")
    assert lines[1:3] == ["At:", "  /models/echo/1/model.py(9): initialize"]
    assert len(lines) == 4


def test_a_log_without_errors_shows_its_end_without_tables() -> None:
    assert failure_lines(["first", "", "last", "| a | b |"]) == ["first", "last"]
    assert failure_lines([]) == []


def test_the_last_lines_leave_out_tables() -> None:
    assert last_lines(LOG)[-1].startswith("I1115 02:02:35")
