"""What is installed and set here."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest

from launcher.commands.doctor.finding import Finding, Verdict
from launcher.commands.doctor.installation import (
    check_data_dir,
    check_model,
    check_ports,
    check_router_parts,
    check_triton,
)
from launcher.packaging.triton_runtime import HOME_VARIABLE
from launcher.settings import Settings, StackSettings

GIB = 1 << 30


def parts(data_dir: Path, **router: Any) -> dict[str, Finding]:
    settings = Settings(StackSettings(data_dir=data_dir), router)
    return {each.check: each for each in check_router_parts(settings)}


def test_tritons_parts_are_found() -> None:
    assert [each.verdict for each in check_triton()] == [Verdict.OK, Verdict.OK]


def test_a_triton_installed_elsewhere_is_checked_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(HOME_VARIABLE, str(tmp_path))
    (found,) = check_triton()
    assert (found.verdict, found.what) == (Verdict.FAIL, f"there is no bin/tritonserver in {tmp_path}")
    for needed in ("bin/tritonserver", "backends/python/triton_python_backend_stub"):
        (tmp_path / needed).parent.mkdir(parents=True)
        (tmp_path / needed).touch()
    assert check_triton()[0].verdict is Verdict.OK


def test_a_data_directory_may_be_missing_and_must_be_a_directory(tmp_path: Path) -> None:
    assert "created at the first start" in check_data_dir(tmp_path / "new").what
    (tmp_path / "file").touch()
    assert check_data_dir(tmp_path / "file" / "below").verdict is Verdict.FAIL


def test_a_model_is_present_or_can_be_fetched(tmp_path: Path) -> None:
    known = "smollm2-135m-instruct"
    assert "downloads 89 MiB" in check_model(known, tmp_path, 10 * GIB).advice
    assert check_model(known, tmp_path, 1000).verdict is Verdict.FAIL
    (tmp_path / "models" / known).mkdir(parents=True)
    assert check_model(known, tmp_path, 10 * GIB).verdict is Verdict.OK
    assert "neither a known model" in check_model("nonsense", tmp_path, 10 * GIB).what
    (tmp_path / "own.gguf").write_bytes(b"GGUF")
    assert check_model(str(tmp_path / "own.gguf"), tmp_path, 10 * GIB).verdict is Verdict.OK


def test_a_port_is_free_ours_or_in_use() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        stack = StackSettings(port=port, grpc_port=-1)
        (found,) = check_ports(stack, frozenset())
        assert found.verdict is Verdict.FAIL
        assert "--port" in found.advice
        assert check_ports(stack, frozenset({port}))[0].verdict is Verdict.SKIPPED


def test_checking_a_router_that_was_never_started_leaves_nothing_behind(tmp_path: Path) -> None:
    found = parts(tmp_path / "data")
    assert found["router settings"].verdict is Verdict.OK
    assert "created at the first start" in found["store"].what
    assert {found[check].verdict for check in ("Redis", "TLS", "tracing", "safety")} == {Verdict.SKIPPED}
    assert not (tmp_path / "data").exists()


def test_a_missing_secret_file_is_named(tmp_path: Path) -> None:
    (found,) = parts(tmp_path, store_url_file=str(tmp_path / "none")).values()
    assert "store_url_file" in found.what
