"""Run as a script: ties the process to its parent, so that it ends with it, and becomes the command.

A script rather than `preexec_fn`, which is unsafe in a process that has threads (gRPC's, the progress bar's).
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def tethered(command: "list[str]") -> "list[str]":
    """A command line that ends with the process that starts it."""
    return [sys.executable, "-I", "-S", __file__, str(os.getpid()), *command]


def main() -> None:
    parent, command = int(sys.argv[1]), sys.argv[2:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the tie was made
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
