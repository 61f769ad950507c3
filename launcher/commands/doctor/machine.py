"""Judges a machine by facts of it: could a stack run here, and how well."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from launcher.commands.doctor.finding import Finding, failure, fine, skipped, warning
from launcher.packaging.triton_runtime import RuntimeMissing, check_architecture
from launcher.python_version import unsupported_python

if TYPE_CHECKING:
    from collections.abc import Mapping

MIB, GIB = 1 << 20, 1 << 30
# Triton, engine, embeddings and router with the default models, and room for answers.
LEAST_MEMORY, GOOD_MEMORY = 2 * GIB, 4 * GIB
LEAST_DISK, GOOD_DISK = GIB // 2, 5 * GIB
# Docker gives 64 MiB, of which the models of one stack would fill a part before the first request.
LEAST_SHM, GOOD_SHM = 128 * MIB, GIB
LEAST_FILES, GOOD_FILES = 1024, 8192
OLDEST_TENSORRT_LLM = (1, 3)


@dataclass(frozen=True)
class MachineFacts:
    """What can be seen without starting anything; None is what could not be found out."""

    python: tuple[int, int]
    system: str
    machine: str
    glibc: str
    wheel_tags: str
    cpus: int
    memory_bytes: int
    disk_free_bytes: int
    shm_bytes: int | None
    open_files: int
    is_clock_kept: bool | None


def judge_machine(facts: MachineFacts) -> list[Finding]:
    return [
        judge_python(facts.python),
        judge_architecture(facts.system, facts.machine),
        judge_glibc(facts.glibc, facts.wheel_tags),
        judge_cpus(facts.cpus),
        judge_memory(facts.memory_bytes),
        judge_disk(facts.disk_free_bytes),
        judge_shm(facts.shm_bytes),
        judge_open_files(facts.open_files),
        judge_clock(facts.is_clock_kept),
    ]


def judge_python(version: tuple[int, int]) -> Finding:
    refused = unsupported_python(version)
    if refused is None:
        return fine("Python", "{}.{}".format(*version))
    what, _, advice = refused.partition("\n")
    return failure("Python", what, advice.replace("\n", " "))


def judge_architecture(system: str, machine: str) -> Finding:
    try:
        check_architecture(machine)
    except RuntimeMissing as error:
        return failure("architecture", str(error), "use Linux on one of these, for instance in a container")
    return fine("architecture", f"{system} on {machine}")


def judge_glibc(glibc: str, wheel_tags: str) -> Finding:
    """`wheel_tags` are those of the package that Triton came in: manylinux_2_35 is glibc 2.35."""
    wanted = re.search(r"manylinux_(\d+)_(\d+)", wheel_tags)
    have = re.match(r"(\d+)\.(\d+)", glibc)
    if wanted is None or have is None:
        return skipped("glibc", f"{glibc or 'unknown'}; the version that Triton needs is unknown")
    least = int(wanted[1]), int(wanted[2])
    if (int(have[1]), int(have[2])) < least:
        needed = "{}.{}".format(*least)
        advice = "use a newer system (Debian 12, Ubuntu 22.04), or the container"
        return failure("glibc", f"{glibc}; Triton's server is built for {needed} or newer", advice)
    return fine("glibc", glibc)


def judge_cpus(cpus: int) -> Finding:
    if cpus < 2:
        advice = "provide two or more: router, Triton and engine compete for the same one"
        return warning("CPU", f"{cpus} core", advice)
    return fine("CPU", f"{cpus} cores")


def judge_memory(available: int) -> Finding:
    return _judge_size(
        "memory",
        available,
        (LEAST_MEMORY, GOOD_MEMORY),
        "available",
        "stop other programs, or serve a smaller model",
    )


def judge_disk(free: int) -> Finding:
    return _judge_size(
        "disk",
        free,
        (LEAST_DISK, GOOD_DISK),
        "free for the data directory",
        "make room, or choose another with --data-dir: models and packed weights are kept there",
    )


def judge_shm(size: int | None) -> Finding:
    if size is None:
        return failure(
            "/dev/shm", "there is none", "mount it: Triton communicates with its models through it"
        )
    return _judge_size(
        "/dev/shm",
        size,
        (LEAST_SHM, GOOD_SHM),
        "in all",
        "make it larger: docker run --shm-size 1g, or shm_size in a compose file",
    )


def judge_open_files(limit: int) -> Finding:
    advice = f"raise it: ulimit -n {GOOD_FILES}, or LimitNOFILE of its service; each connection takes one"
    if limit < LEAST_FILES:
        return failure("open files", f"{limit} at most", advice)
    if limit < GOOD_FILES:
        return warning("open files", f"{limit} at most", advice)
    return fine("open files", f"{limit} at most")


def judge_clock(is_kept: bool | None) -> Finding:
    if is_kept is None:
        return skipped("clock", "whether it is synchronised cannot be determined")
    if not is_kept:
        advice = (
            "run chrony, ntpd or systemd-timesyncd, here or on its host; key expiry and monthly budgets "
            "depend on it"
        )
        return warning("clock", "the kernel reports it as not synchronised", advice)
    return fine("clock", "synchronised")


def judge_gpu(seen: Mapping[str, Any]) -> Finding:
    """By what the engine itself sees, and what it says is missing for CUDA."""
    gpus, missing = seen["gpus"], seen["missing"]
    if not gpus:
        return skipped("GPU", "none visible to this process: the engine runs on the CPU")
    names = ", ".join(gpus)
    if missing:
        advice = 'install what is missing, or set inflight_device = "cpu" under [engine]'
        return warning("GPU", f"{names} would not be used: {missing}", advice)
    return fine("GPU", f"{names}, torch {seen['torch']}")


def judge_tensorrt_llm(version: str | None, has_gpu: bool) -> Finding:
    """Only where there is a GPU is it of any use."""
    if version is None:
        return skipped("TensorRT-LLM", "not installed: models run on this project's engine")
    found = re.match(r"(\d+)\.(\d+)", version)
    oldest = "{}.{}".format(*OLDEST_TENSORRT_LLM)
    if found is None or (int(found[1]), int(found[2])) < OLDEST_TENSORRT_LLM:
        advice = f"install {oldest} or newer to have it used"
        return warning("TensorRT-LLM", f"{version} is older than {oldest} and is not used", advice)
    if not has_gpu:
        return warning("TensorRT-LLM", f"{version}, but there is no GPU", "run it on a machine with a GPU")
    return fine("TensorRT-LLM", version)


def _judge_size(check: str, size: int, wanted: tuple[int, int], of: str, advice: str) -> Finding:
    least, good = wanted
    what = f"{told_bytes(size)} {of}"
    if size < least:
        return failure(check, f"{what}; at least {told_bytes(least)} are needed", advice)
    if size < good:
        return warning(check, f"{what}; {told_bytes(good)} are better", advice)
    return fine(check, what)


def told_bytes(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / MIB:.0f} MiB"
