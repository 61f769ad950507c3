"""A supervised program in a container: what it says goes on to the container's own log."""

from __future__ import annotations

import subprocess
import threading
from collections import deque
from contextlib import suppress

from client.terminal import print
from launcher.stack.processes import ChildProcess

# Enough for what is shown of a start that failed; the container's log has the rest.
KEPT_LINES = 5000
# What one says right before its end is still on the way; what it left behind may hold the line open.
LAST_WORDS_S = 1.0


class EchoedProcess(ChildProcess):
    """No file grows: the latest lines are kept in memory, for whoever asks why it died."""

    def start(self) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        process = self._spawn(subprocess.PIPE)
        self._listener = threading.Thread(target=self._echo, args=(process, self._lines), daemon=True)
        self._listener.start()

    @staticmethod
    def _echo(process: subprocess.Popen[bytes], lines: deque[str]) -> None:
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                text = line.decode("utf-8", errors="replace").rstrip("\r\n")
                lines.append(text)
                with suppress(OSError, ValueError):  # whoever read our output has gone
                    print(text, flush=True)

    @property
    def where_logged(self) -> str:
        return "its output is above"

    def log_lines(self) -> list[str]:
        if not self.running:
            self._listener.join(LAST_WORDS_S)
        return list(self._lines)
