"""Known weaknesses of what we have others install, in a line or a few: a report, which nothing fails by."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
# By `make install`, and by `inflight runtime install vllm` from a bundle; in versions that differ.
FILES = ("requirements.hashes", "requirements-vllm.hashes")
_TIMEOUT_S = 120


def report(name: str, answer: dict[str, Any]) -> str:
    """What pip-audit found in this file, for people."""
    packages = answer.get("dependencies", [])
    checked = [each for each in packages if "vulns" in each]
    if not checked:
        return f"{name}: the vulnerability service knows none of the packages, so nothing was checked"
    weak = [each for each in checked if each["vulns"]]
    lines = [f"{name}: {len(weak)} of {len(checked)} packages have known vulnerabilities"]
    for each in weak:
        names = ", ".join(sorted(found["id"] for found in each["vulns"]))
        lines.append(f"  {each['name']} {each['version']}: {names}")
    return "\n".join(lines)


def audited(name: str) -> str:
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(ROOT / name)]
    command += ["--disable-pip", "--timeout", "5", "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
        return report(name, msgspec.json.decode(done.stdout))
    except (subprocess.TimeoutExpired, msgspec.DecodeError):
        return f"{name}: no vulnerability service is reachable, so nothing was checked"


def main() -> None:
    for name in FILES:
        print(audited(name), flush=True)


if __name__ == "__main__":
    main()
