from __future__ import annotations

import os
import platform

from loadtest.machine import about_machine, about_server
from tests.fakes.openai_server import TEXT_MODEL, TimedApi, timed_api


def test_a_machine_is_described_by_processor_cores_memory_and_versions() -> None:
    about = about_machine()
    assert about["cores"] == str(len(os.sched_getaffinity(0)))
    assert about["Python"] == platform.python_version()
    assert about["memory"].endswith(" GiB")
    assert about["processor"]
    assert "inflight" in about


def test_a_server_without_information_is_at_least_named() -> None:
    assert about_server("http://127.0.0.1:9") == {"target": "http://127.0.0.1:9"}


def test_a_server_is_described_by_its_version_and_its_models() -> None:
    with timed_api(TimedApi()) as api:
        about = about_server(api.url)
    assert about["server"] == "inflight 1.2.3"
    assert TEXT_MODEL in about["models"]
