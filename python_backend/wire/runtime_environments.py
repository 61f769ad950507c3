"""Where a runtime's own Python is noted: `runtimes/NAME/runtime.json` in the data directory."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass

FILE = "runtime.json"

Version = tuple[int, int]

# The oldest version of a package that is asked as it wants to be.
OLDEST: dict[str, Version] = {"vllm": (0, 26), "llm": (1, 3)}


@dataclass(frozen=True, slots=True)
class RuntimeEnvironment:
    """An interpreter that has a runtime's package: which one, of which version, for which device.

    Without a `python` it is the one that runs this very program.
    """

    python: str
    package: str
    version_text: str
    device: str = "cuda"
    torch: str = ""

    @property
    def version(self) -> Version:
        return version_of(self.version_text)

    def to_text(self) -> str:
        return json.dumps(asdict(self), indent=1)


def version_of(text: str) -> Version:
    """Its first two numbers; what does not begin so is older than anything."""
    numbers = re.match(r"(\d+)\.(\d+)", text)
    return (int(numbers[1]), int(numbers[2])) if numbers else (0, 0)


def environment_from(text: str) -> RuntimeEnvironment:
    """Raises ValueError for what is no such note."""
    try:
        return RuntimeEnvironment(**json.loads(text))
    except TypeError as error:
        raise ValueError(f"not a runtime's environment file: {error}") from error
