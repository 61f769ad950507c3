"""Known weaknesses of what `make install` installs, in a line or a few: a report, which nothing fails by."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

ROOT = Path(__file__).resolve().parents[1]
_TIMEOUT_S = 60


def report(answer: dict[str, Any]) -> str:
    """What pip-audit found, for people."""
    packages = answer.get("dependencies", [])
    checked = [each for each in packages if "vulns" in each]
    if not checked:
        return "audit: the vulnerability service knows none of the packages: nothing was checked"
    weak = [each for each in checked if each["vulns"]]
    lines = [f"audit: {len(weak)} of {len(checked)} packages have known weaknesses"]
    for each in weak:
        names = ", ".join(sorted(found["id"] for found in each["vulns"]))
        lines.append(f"  {each['name']} {each['version']}: {names}")
    return "\n".join(lines)


def main() -> None:
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(ROOT / "requirements.hashes")]
    command += ["--disable-pip", "--timeout", "5", "--format", "json", "--progress-spinner", "off"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S)
        print(report(msgspec.json.decode(done.stdout)))
    except (subprocess.TimeoutExpired, msgspec.DecodeError):
        print("audit: no vulnerability service can be reached: nothing was checked")


if __name__ == "__main__":
    main()
