"""Run as a script: becomes the command, whose shared memory nobody else can open.

Triton's Python backend passes prompts through files in /dev/shm. The library that creates them opens them to
everybody, with fchmod and in spite of the umask; it does not mind when that fails. So here it fails, for
the command and all it starts.
"""

import ctypes
import os
import platform
import struct
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, MODE_FILTER = 38, 22, 2
# Of the kernel's audit interface, and the number of fchmod there.
FCHMOD = {"x86_64": (0xC000003E, 91), "aarch64": (0xC00000B7, 52)}
LOAD_WORD, JUMP_IF_EQUAL, RETURN = 0x20, 0x15, 0x06
NUMBER_AT, ARCHITECTURE_AT = 0, 4  # in what a filter looks at
ALLOW, FAIL_WITH_EPERM = 0x7FFF0000, 0x00050001


def with_private_memory(command: "list[str]") -> "list[str]":
    """A command line that does the same, and keeps its shared memory to itself."""
    return [sys.executable, "-I", "-S", __file__, *command]


def refuse_fchmod(machine: str) -> None:
    """For this process, for good. OSError where the kernel does not do that."""
    architecture, number = FCHMOD[machine]
    steps = (
        (LOAD_WORD, 0, 0, ARCHITECTURE_AT),
        (JUMP_IF_EQUAL, 0, 3, architecture),
        (LOAD_WORD, 0, 0, NUMBER_AT),
        (JUMP_IF_EQUAL, 0, 1, number),
        (RETURN, 0, 0, FAIL_WITH_EPERM),
        (RETURN, 0, 0, ALLOW),
    )
    program = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    described = struct.pack("HxxxxxxP", len(steps), ctypes.addressof(program))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    prctl.argtypes = (ctypes.c_int, ctypes.c_ulong, ctypes.c_char_p, ctypes.c_ulong, ctypes.c_ulong)
    if prctl(PR_SET_NO_NEW_PRIVS, 1, None, 0, 0) or prctl(PR_SET_SECCOMP, MODE_FILTER, described, 0, 0):
        raise OSError(ctypes.get_errno(), "no filter for system calls")


def main() -> None:
    command = sys.argv[1:]
    try:
        refuse_fchmod(platform.machine())
    except (OSError, KeyError) as error:
        print(f"prompts in /dev/shm can be read by other users of this machine: {error}", file=sys.stderr)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
