"""Picks from a process's log the lines that tell why it failed."""

from __future__ import annotations

import re

LOG_LINE = re.compile(r"[IWEF]\d{4} \d\d:\d\d:\d\d")
# Said on every machine without a GPU.
HARMLESS = ("CudaDriverHelper has not been initialized", "CUDA driver version is insufficient")
LAST_LINES = 12


def failure_lines(log_lines: list[str], limit: int = 30) -> list[str]:
    """The errors in Triton's log with the lines they continue on; the end of the log when there is none."""
    picked: list[str] = []
    inside = False
    for line in log_lines:
        if LOG_LINE.match(line) or is_table(line):
            inside = line.startswith(("E", "F")) and not any(phrase in line for phrase in HARMLESS)
        if inside and line.strip():
            picked.append(line)
    return picked[-limit:] or last_lines(log_lines)


def last_lines(log_lines: list[str]) -> list[str]:
    return [line for line in log_lines if line.strip() and not is_table(line)][-LAST_LINES:]


def is_table(line: str) -> bool:
    return line.startswith(("+-", "| "))
