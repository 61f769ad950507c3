"""The Triton servers of a stack as supervised services: each is watched, and cleaned up after, by itself."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from launcher.packaging.repository import PIPELINE
from launcher.private_memory import with_private_memory
from launcher.stack.gpus import share_of_gpus
from launcher.stack.pools import share_of_pools
from launcher.stack.processes import ChildProcess, descendants, end_all
from launcher.stack.silence import SilenceWatch
from launcher.stack.stubs import StubWatch, has_fallen
from launcher.stack.supervisor import Service
from python_backend.host.cores import SERVERS_HERE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence, Set

    from launcher.console import StackConsole
    from launcher.stack.runs import Run
    from launcher.stack.triton_server import TritonServer

LOAD_TIMEOUT_S = 600.0
LOAD_BYTES_PER_S = 50e6  # of weights, from a slow disk
UNLOAD_TIMEOUT_S = 20.0
# The wheel's release cuts streams of ensembles when it is stopped, and waits for them all the same. Any other
# waits for ever, too, if a dead model was sent requests. Without either a stop takes 3 s.
VAIN_TIMEOUT_S = 6.0


class TritonServices:
    """`needed` are the models of the stack without which its servers are broken.

    Each server sees so many `gpus` of its own; with 0 it sees all. The first of them, as many as
    `prefill` says, compute prompts for the others.
    """

    def __init__(
        self,
        run: Run,
        console: StackConsole,
        needed: Set[str],
        gpus: int,
        kind: type[ChildProcess] = ChildProcess,
        weights_bytes: int = 0,
        prefill: int = 0,
    ) -> None:
        self._prefill = prefill
        self._load_timeout_s = LOAD_TIMEOUT_S + weights_bytes / LOAD_BYTES_PER_S
        self._run = run
        self._console = console
        self._needed = needed
        self._gpus = gpus
        self._kind = kind

    def of(
        self, tritons: Sequence[TritonServer], environment: Mapping[str, str], *routers: ChildProcess
    ) -> list[Service]:
        """Beside `routers`, which are spared when one of the servers is cleaned up after."""
        told = environment if self._gpus else {**environment, SERVERS_HERE: str(len(tritons))}
        children = [self._child(triton, told) for triton in tritons]
        services = [
            self._service(triton, child, [*routers, *(other for other in children if other is not child)])
            for triton, child in zip(tritons, children, strict=True)
        ]
        for service in services:
            service.peers = [peer for peer in services if peer is not service]
        return services

    def _child(self, triton: TritonServer, environment: Mapping[str, str]) -> ChildProcess:
        gpu = share_of_gpus(triton.number, environment, size=self._gpus) if self._gpus else {}
        log_path = self._run.directory / f"{triton.name.lower()}.log"
        command = with_private_memory(triton.command())
        pool = share_of_pools(triton.number, self._prefill, self._run.directory)
        told = {**environment, **gpu, **pool}
        return self._kind(command, triton.runtime.environment(told), log_path)

    def _service(self, triton: TritonServer, child: ChildProcess, others: list[ChildProcess]) -> Service:
        of = f" of {triton.name}" if len(others) > 1 else ""
        watch = StubWatch(self._console, self._needed, triton.is_loaded, of)
        silence = SilenceWatch(triton.is_live)

        def is_ready() -> bool:
            has_loaded = triton.is_ready(PIPELINE)
            if has_loaded:
                watch.begin(child.pid, time.monotonic())
                silence.begin()
            return has_loaded

        def clean_up_after() -> None:
            # What it leaves behind has been adopted by the launcher; what is below the others is theirs.
            end_all(descendants(spare=others))
            self._run.remove_shared_memory(triton.number)

        def longest_stop_s() -> float:
            waits_in_vain = triton.runtime.is_of_wheel or has_fallen(child.pid)
            return VAIN_TIMEOUT_S if waits_in_vain else UNLOAD_TIMEOUT_S

        return Service(
            triton.name,
            child,
            is_ready=is_ready,
            start_timeout_s=self._load_timeout_s,
            longest_stop_s=longest_stop_s,
            find_fault=lambda now_s: watch.find_fault(child.pid, now_s) or silence.find_fault(now_s),
            clean_up_after=clean_up_after,
        )
