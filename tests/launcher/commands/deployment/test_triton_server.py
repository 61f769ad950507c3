"""`inflight triton`: what it refuses, whose Triton it starts, and where what it says goes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from launcher.commands.deployment.echoed_process import EchoedProcess
from launcher.commands.deployment.triton_server import TritonOptions
from launcher.commands.main import app
from launcher.packaging.releases.builder import backends_of
from launcher.packaging.triton_runtime import RuntimeMissing, installed_runtime
from launcher.settings import SettingsError
from launcher.stack.triton_door import tls_door
from launcher.stack.triton_server import TritonServer
from tests.launcher.stand_ins.project import write_project
from tests.waiting import wait_until


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """As NVIDIA's images have it."""
    for file in (
        "bin/tritonserver",
        "backends/python/libtriton_python.so",
        "backends/python/triton_python_backend_stub",
        "backends/python/triton_python_backend_utils.py",
        "backends/tensorrtllm/libtriton_tensorrtllm.so",
    ):
        path = tmp_path / "tritonserver" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file)
    return tmp_path / "tritonserver"


def test_a_public_address_needs_a_secret() -> None:
    for host in ("0.0.0.0", "::", "10.0.0.7", "triton"):
        with pytest.raises(
            SettingsError, match=r"--host .*: others could reach this address and load models"
        ):
            TritonOptions(host, 1, 2).check()
        TritonOptions(host, 1, 2, secret_file=Path("secret")).check()
    TritonOptions("127.0.0.1", 1, 2).check()


@pytest.mark.parametrize("servers", ["0", "17", "some", "-1", ""])
def test_an_invalid_number_of_servers_is_refused(servers: str) -> None:
    with pytest.raises(SettingsError, match=r"--servers is .*; allowed: 1 to 16, or all"):
        TritonOptions("127.0.0.1", 1, 2, servers=servers).check()


def test_each_server_has_ports_of_its_own() -> None:
    options = TritonOptions("127.0.0.1", 8001, 8002, servers="all")
    options.check()
    assert [options.ports(number) for number in range(3)] == [(8001, 8002), (8011, 8012), (8021, 8022)]
    assert TritonOptions("127.0.0.1", 0, 0).ports(1) == (0, 0)


def test_a_built_engine_needs_nvidias_library(tmp_path: Path, home: Path) -> None:
    with pytest.raises(SettingsError, match="--engine-dir needs NVIDIA's own backend library"):
        TritonOptions("127.0.0.1", 1, 2, engine_dir=tmp_path).check()
    with pytest.raises(SettingsError, match="not-there is not a directory"):
        TritonOptions("127.0.0.1", 1, 2, home=home, engine_dir=tmp_path / "not-there").check()
    TritonOptions("127.0.0.1", 1, 2, home=home, engine_dir=tmp_path).check()


@pytest.mark.parametrize("ports", [(70_000, 2), (1, -1)])
def test_an_invalid_port_is_refused(ports: tuple[int, int]) -> None:
    with pytest.raises(
        SettingsError, match=r"--(grpc|metrics)-port is .*; allowed: 1 to 65535, or 0 for any"
    ):
        TritonOptions("127.0.0.1", *ports).check()


def test_the_command_reports_an_error_in_one_sentence(tmp_path: Path) -> None:
    told = CliRunner().invoke(app, ["triton", "--host", "0.0.0.0", "--data-dir", str(tmp_path)])
    assert told.exit_code == 2
    assert "--secret-file" in told.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_installed_triton_gets_our_drop_in_beside_its_own_python_backend(
    tmp_path: Path, home: Path
) -> None:
    project = write_project(tmp_path / "project")
    built = installed_runtime(home, project, tmp_path / "run")
    assert built.server == home / "bin" / "tritonserver"
    assert (built.backend_dir / "python" / "libtriton_python.so").read_text().startswith("backends")
    stub = built.backend_dir / "python" / "triton_python_backend_stub"
    assert stub.resolve() == home / "backends" / "python" / stub.name
    assert [each.name for each in (built.backend_dir / "tensorrtllm").iterdir()] == ["model.py"]
    # The image's stub finds the libpython it was built for by itself.
    assert "LD_LIBRARY_PATH" not in built.environment({"PATH": "/bin"})
    assert built.environment({"LD_LIBRARY_PATH": "/cuda"})["LD_LIBRARY_PATH"] == "/cuda"


def test_an_engine_runs_with_the_installed_nvidia_library(tmp_path: Path, home: Path) -> None:
    built = installed_runtime(home, tmp_path, tmp_path / "run", is_native=True)
    assert built.backend_dir == home / "backends"
    (home / "backends" / "tensorrtllm" / "libtriton_tensorrtllm.so").unlink()
    with pytest.raises(RuntimeMissing, match=r"there is no backends/tensorrtllm/libtriton_tensorrtllm\.so"):
        installed_runtime(home, tmp_path, tmp_path / "run", is_native=True)
    with pytest.raises(RuntimeMissing, match="there is no bin/tritonserver in it"):
        installed_runtime(tmp_path, tmp_path, tmp_path / "run")


def test_releases_learn_from_the_environment_what_an_installed_triton_can_run(
    tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "backends" / "onnxruntime").mkdir()
    monkeypatch.setenv("INFLIGHT_TRITON_HOME", str(home))
    assert backends_of(write_project(tmp_path / "project")) == {"python", "tensorrtllm", "onnxruntime"}


def test_triton_listens_on_the_given_host_and_is_called_on_this_machine(home: Path, tmp_path: Path) -> None:
    runtime = installed_runtime(home, write_project(tmp_path / "project"), tmp_path / "run")

    def server(host: str) -> TritonServer:
        door = tls_door(host, 8001, "the secret", tmp_path / "tls")
        return TritonServer(runtime, (), "prefix", door, 8002, metrics_host=host)

    assert {"--grpc-address=0.0.0.0", "--metrics-address=0.0.0.0"} <= set(server("0.0.0.0").command())
    assert {"--allow-http=false", "--grpc-use-ssl-mutual=true"} <= set(server("0.0.0.0").command())
    assert "the secret" not in " ".join(server("0.0.0.0").command())
    assert server("0.0.0.0").door.url == server("::").door.url == "127.0.0.1:8001"
    assert server("10.0.0.7").metrics_url == "http://10.0.0.7:8002/metrics"
    assert server("::1").door.url == "[::1]:8001"


def test_a_containers_child_output_is_echoed_to_its_log_and_remembered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = (
        "import sys; print('one'); print('tw\\xf6', file=sys.stderr); sys.stdout.buffer.write(b'\\xff\\n')"
    )
    child = EchoedProcess(
        [sys.executable, "-X", "utf8", "-c", program], os.environ, tmp_path / "not-written.log"
    )
    child.start()
    wait_until(lambda: not child.running)
    assert sorted(child.log_lines()) == sorted(["one", "twö", "\ufffd"])
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(child.log_lines())
    assert not child.log_path.exists()
    assert child.where_logged == "its output is above"
