"""Processes that spool and deliver until they are killed, and print how many records they have appended.

For each number read from stdin one process is forked that counts its records from there: starting Python anew
for each would take far longer than what is tested.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

from router.store.database import Store
from router.tenants.spool import UsageSpool
from router.tenants.treasury import Treasury
from tests.router.tenants.values import usage


def spool_until_killed(directory: str, store_url: str, first: int) -> None:
    spool = UsageSpool(Path(directory), flush_s=0.002)
    store = Store(store_url)
    treasury = Treasury(store, spool.process)

    def deliver() -> None:
        while True:
            spool.deliver(treasury.charge)

    spool.start()
    threading.Thread(target=deliver, daemon=True).start()
    number = first
    while True:
        for _ in range(20):
            spool.append(usage(f"request-{number}"))
            number += 1
        os.write(1, b"%d\n" % number)  # whole or not at all, unlike print
        time.sleep(0.001)


def serve(directory: str, store_url: str) -> None:
    for line in sys.stdin:
        pid = os.fork()
        if not pid:
            spool_until_killed(directory, store_url, int(line))
        print(f"pid {pid}", flush=True)
        os.waitpid(pid, 0)
        print("gone", flush=True)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2])
