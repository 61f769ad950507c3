"""How much processor time a server's processes have used, by what they are."""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
# The first that a command line contains names the process.
_NAMES = {
    "triton_python_backend_stub": "stub",
    "tritonserver": "Triton",
    "python_backend.engine.process": "engine",
    "-m router": "router",
    "launcher": "launcher",
    "EngineCore": "vLLM's core",
    "vllm": "vLLM's server",
}


def seconds_by_process(root: int) -> dict[str, float]:
    """Of `root` and all below it; a Triton stub goes by the model it serves."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (stat := _stat(int(folder.name))):
            children.setdefault(int(stat[1]), []).append(int(folder.name))
    found: dict[str, float] = {}
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        waiting += children.get(pid, [])
        if stat := _stat(pid):
            name = _name(pid)
            found[name] = found.get(name, 0.0) + (int(stat[11]) + int(stat[12])) / _TICKS
    return found


def _stat(pid: int) -> list[str] | None:
    """What follows the command's name; None where the process has gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    except (OSError, IndexError):
        return None


def _name(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return "other"
    line = " ".join(words)
    for part, name in _NAMES.items():
        if part in line:
            return next((word.split("/")[-3] for word in words if word.endswith("model.py")), name)
    return words[0].rsplit("/", 1)[-1] or "other"
