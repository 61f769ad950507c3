"""The engine's side of a trial: guides go to another process first, which is replaced when one breaks it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

from python_backend.engine.guides import trial
from python_backend.engine.guides.limits import GuideLimits, refusal
from python_backend.engine.request import Guide
from python_backend.host.priorities import give_way
from python_backend.wire.errors import ErrorKind, InflightError


class TrialProcess:
    """Tries one guide at a time. The process starts with the first one and ends with its owner."""

    def __init__(self, limits: GuideLimits) -> None:
        self._limits = limits
        self._process: subprocess.Popen[str] | None = None
        self.took_s = 0.0  # of a processor, by the last one

    def grammar_of(self, guide: Guide) -> str:
        """The guide as llguidance's grammar, known to compile within the limits; else InflightError."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(json.dumps([guide.kind.value, guide.text]) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer.endswith("\n"):
            self.took_s = self._limits.compile_s  # or less, of what is worth resting for
            raise self._cause_of_death()
        verdict = json.loads(answer)
        self.took_s = verdict["took_s"]
        if "grammar" not in verdict:
            raise refusal(verdict["error"])
        return str(verdict["grammar"])

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self.close()
            limits = self._limits
            arguments = (limits.compile_s, limits.step_s, limits.memory_bytes)
            self._process = subprocess.Popen(
                [sys.executable, str(Path(trial.__file__)), *map(str, arguments)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
            )
            give_way(self._process.pid)
        return self._process

    def _cause_of_death(self) -> InflightError:
        assert self._process is not None
        code = self._process.wait()
        self.close()
        if code in (-signal.SIGALRM, -signal.SIGPROF):
            limits = f"{self._limits.compile_s:g} s, and {self._limits.step_s:g} s for one token"
            return refusal(f"costs too much to compile; limit {limits}")
        if code > 0:
            text = f"the process that checks guides failed (exit code {code})"
            return InflightError(ErrorKind.INTERNAL, text)
        return refusal("costs too much to compile: it takes too much memory, or is nested too deeply")
