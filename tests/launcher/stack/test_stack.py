"""A stack with a real Triton: it comes up, survives what is killed, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil
import pytest
from tritonclient import grpc as triton

from launcher.packaging.models.checkpoint import served_name
from tests.launcher.stand_ins.running_stack import READY, RunningStack, is_live
from tests.pace import patience

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.stack

SERVER, STUB, ROUTER = "tritonserver", "triton_python_backend_stub", "stand_ins/stub_router.py"


@pytest.fixture
def started() -> Iterator[list[RunningStack]]:
    """Stacks put here are ended with the test."""
    stacks: list[RunningStack] = []
    yield stacks
    for stack in stacks:
        stack.end()


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two stacks, one after the other, with things among the releases that are none."""
    made: Path = tmp_path_factory.mktemp("stack")
    releases = made / "data" / "releases" / "repository"
    for name in ("broken.1", "without-files.2", "__pycache__"):
        (releases / name).mkdir(parents=True)
    (releases / "broken.1" / "config.pbtxt").write_text("name: ${cheese")
    (releases / "without-files.2" / "config.pbtxt").write_text('backend: "python"')
    (releases / "README.md").write_text("not a model")
    return made


@pytest.fixture(scope="module")
def single(directory: Path) -> Iterator[RunningStack]:
    """The first one, for as long as its launcher lives."""
    stack = RunningStack(directory, engine={"inflight_max_batch_size": "3"})
    try:
        stack.wait_for(READY)
        yield stack
    finally:
        stack.end()


@pytest.fixture(scope="module")
def left_behind(single: RunningStack) -> tuple[Path, list[psutil.Process]]:
    """By the first one when its launcher is killed: its directory and its processes."""
    left = single.run_directory, single.processes()
    (server,) = single.processes(SERVER)
    server.suspend()  # it cannot follow its launcher by itself
    single.process.kill()
    single.process.wait()
    return left


@pytest.fixture(scope="module")
def pair(directory: Path, left_behind: object) -> Iterator[RunningStack]:
    """The second one in the same directory, with two Triton servers at ports."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    servers = {"triton_servers": 2, "triton_grpc_port": port}
    stack = RunningStack(directory, stack=servers, drain_s=1, is_piped=True)
    try:
        stack.wait_for(READY)
        yield stack
    finally:
        stack.end()


def ask_engine(stack: RunningStack, server: int = 0) -> dict[str, str]:
    """What the stand-in engine says about itself, through the ensemble."""
    number = triton.InferInput("x", [1, 1], "INT32")
    number.set_data_from_numpy(np.array([[1]], dtype=np.int32))
    with client_of(stack.tritons[server]) as client:
        answer: Any = client.infer("ensemble", [number]).as_numpy("y")
    facts: dict[str, str] = json.loads(answer.item())
    return facts


def answers(stack: RunningStack) -> bool:
    """Return whether the engine can be asked: Triton may also abort a moment after its model is back."""
    with suppress(triton.InferenceServerException):
        return "gpt_model_path" in ask_engine(stack)
    return False


def client_of(server: dict[str, str]) -> triton.InferenceServerClient:
    """Triton's own, with what the router is told."""
    if "tls_ca" not in server:
        return triton.InferenceServerClient(server["url"])
    return triton.InferenceServerClient(
        server["url"],
        ssl=True,
        root_certificates=server["tls_ca"],
        private_key=server["tls_key"],
        certificate_chain=server["tls_cert"],
    )


def has_noticed(stack: RunningStack, server: psutil.Process) -> bool:
    """That a model's process died, unless Triton went with it."""
    return "The tensorrt_llm model died; the router loads it again." in stack.output or not is_live(server)


def load_again(stack: RunningStack) -> None:
    """As the router does with a model whose process died: with a changed parameter."""
    (server,) = stack.tritons
    with client_of(server) as client, suppress(triton.InferenceServerException):  # Triton aborts now and then
        config: Any = client.get_model_config("tensorrt_llm", as_json=True)
        config["config"]["parameters"]["inflight_epoch"] = {"string_value": "1"}
        client.load_model("tensorrt_llm", config=json.dumps(config["config"]))


def stop_and_check_nothing_is_left(stack: RunningStack, expected_status: int = 0) -> None:
    processes = stack.processes()
    assert processes
    stack.process.terminate()
    assert stack.process.wait(timeout=patience(30)) == expected_status, stack.output
    assert [process for process in processes if is_live(process)] == []
    assert stack.shared_memory() == []


def test_a_stack_comes_up_and_serves_whatever_lies_among_the_releases(
    single: RunningStack, directory: Path
) -> None:
    stack = single
    facts = ask_engine(stack)
    assert facts["gpt_model_path"] == facts["tokenizer_dir"] == str(directory / "model")
    assert facts["inflight_max_batch_size"] == "3"
    assert facts["inflight_packed_cache_dir"] == str(directory / "data" / "packed")
    assert "Packing the weights (int8)" in stack.output
    assert facts["inflight_device"] == "cpu", "decided once, when it was prepared"
    assert "  computes on the CPU, int8\n" in stack.output
    assert "Computing on the CPU: there is a GPU, but it is made of cheese\n" in stack.output
    assert "Reading poems ..." in stack.output, "what the engine says in Triton's log is shown"
    assert facts["prefix"] == sys.prefix, "models must see this virtual environment"

    settings = tomllib.loads((stack.run_directory / "router.toml").read_text())
    model = settings["models"][0]
    assert model["name"] == served_name("model")
    assert (model["pipeline"], model["engine"]) == ("ensemble", "tensorrt_llm")
    assert (len(model["weights_sha256"]), len(model["tokenizer_sha256"])) == (64, 64)
    assert model["parameters"] == {
        "inflight_max_batch_size": "3",
        "inflight_device": "cpu",
        "inflight_precision": "int8",
    }
    (server,) = stack.tritons
    assert list(server) == ["url"]
    assert f"Triton   {server['url']}" in stack.output
    assert len(list(stack.releases.iterdir())) == 4
    with client_of(server) as client:
        listed = client.get_model_repository_index().models
    assert sorted(each.name for each in listed if each.state == "READY") == ["ensemble", "tensorrt_llm"]
    assert stack.shared_memory() != []


def test_whatever_is_killed_comes_back(single: RunningStack) -> None:
    """When a model's process is killed, this release of Triton aborts now and then, and comes back too."""
    stack, victims = single, []
    for times, name in enumerate((SERVER, STUB, ROUTER, SERVER), start=1):
        (victim,), (server,) = stack.processes(name), stack.processes(SERVER)
        victims += [victim, *victim.children(recursive=True)]
        victim.kill()
        if name == STUB:
            stack.wait_until(partial(has_noticed, stack, server))
            load_again(stack)
        stack.wait_for("is back.", times)
        stack.wait_until(partial(answers, stack))
        # A dead stub's region stays until Triton clears it away, which is seldom before its own end.
        assert 1 <= len(stack.shared_memory()) <= (1 if name == SERVER else 2)
    assert [process for process in victims if is_live(process)] == []
    assert "Triton died (killed by SIGKILL)" in stack.output
    assert "The router died (killed by SIGKILL)" in stack.output


def test_after_a_killed_launcher_the_next_one_cleans_up(
    left_behind: tuple[Path, list[psutil.Process]], pair: RunningStack
) -> None:
    first_directory, processes = left_behind
    assert [process for process in processes if is_live(process)] == []
    assert {path.name for path in first_directory.iterdir()} == {"triton.log", "router.log"}
    assert len(pair.shared_memory()) == 2


def test_one_of_two_triton_servers_dies_and_comes_back_while_the_other_serves(pair: RunningStack) -> None:
    stack = pair
    first, second = stack.tritons
    assert first["tls_ca"] != second["tls_ca"]
    stack.wait_for(f"  and      {second['url']}  (gRPC), http://127.0.0.1:")
    port = f"--grpc-port={second['url'].split(':')[1]}"
    (victim,) = [server for server in stack.processes(SERVER) if port in server.cmdline()]
    survivors = [process for process in stack.processes() if process not in family_of(victim)]
    victim.kill()
    while "Triton-1 is back." not in stack.output:
        assert "gpt_model_path" in ask_engine(stack, server=0)
        time.sleep(0.05)
    assert "gpt_model_path" in ask_engine(stack, server=1)
    assert [process for process in survivors if not is_live(process)] == []
    assert len(stack.shared_memory()) == 2
    assert {path.name for path in stack.run_directory.glob("*.log")} == {
        "triton.log",
        "triton-1.log",
        "router.log",
    }


def test_a_port_of_tritons_answers_nobody_without_the_right_certificate(pair: RunningStack) -> None:
    """Neither inference nor the repository, by which code can be run; the secret is nowhere."""
    first, second = pair.tritons
    plain = {"url": first["url"]}
    for intruder in (plain, {**second, "url": first["url"]}, {**second, **plain, "tls_ca": first["tls_ca"]}):
        with client_of(intruder) as client:
            for call in (client.is_server_live, client.get_model_repository_index):
                with pytest.raises(triton.InferenceServerException):
                    call()
    words = " ".join(word for server in pair.processes(SERVER) for word in server.cmdline())
    assert "restricted" not in words
    for file in ("tls_key", "tls_cert", "tls_ca"):
        assert os.stat(first[file]).st_mode & 0o077 == 0


def family_of(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def test_requests_in_flight_finish_when_a_model_has_died_and_nobody_reads_the_output_any_more(
    pair: RunningStack,
) -> None:
    """The last one of this stack: it is stopped, and nothing is left behind."""
    log = pair.run_directory / "router.log"
    pair.lose_reader()
    pair.processes(STUB)[0].kill()
    stop_and_check_nothing_is_left(pair)
    assert log.read_text().count("drained while Triton was there") == 2
    assert len(list(pair.releases.iterdir())) == 4


def test_a_model_that_does_not_load_ends_the_start_with_its_error(
    tmp_path: Path, started: list[RunningStack]
) -> None:
    stack = RunningStack(tmp_path, engine={"inflight_runtime": "synthetic"})  # the stand-in's way to fail
    started.append(stack)
    assert stack.process.wait(timeout=patience(30)) == 1
    assert "Packing" not in stack.output, "a synthetic engine has no weights"
    assert "Triton did not start (exit code 1)" in stack.output
    assert "the weights are made of cheese" in stack.output
    assert "Loading the model: " not in stack.output, "it was not done"
    assert stack.shared_memory() == []


def test_a_model_that_the_engine_refuses_ends_the_start_before_triton(
    tmp_path: Path, started: list[RunningStack]
) -> None:
    stack = RunningStack(tmp_path, engine={"inflight_precision": "fp32"})  # the stand-in's way to refuse
    started.append(stack)
    assert stack.process.wait(timeout=patience(30)) == 1
    assert stack.output.endswith("this model is a poem, which this engine does not know\n")
    assert stack.logs == {}


def test_a_parameter_that_the_engine_refuses_is_an_unusable_setting(
    tmp_path: Path, started: list[RunningStack]
) -> None:
    stack = RunningStack(tmp_path, engine={"inflight_precision": "bf16"})  # the stand-in's way to refuse it
    started.append(stack)
    assert stack.process.wait(timeout=patience(30)) == 2
    assert stack.output.endswith("parameter inflight_precision is 'bf16'; allowed: int8\n")


def test_a_stop_during_the_preparation_ends_the_preparation(
    tmp_path: Path, started: list[RunningStack]
) -> None:
    stack = RunningStack(tmp_path, engine={"inflight_precision": "int4"})  # the stand-in's way to take long
    started.append(stack)
    stack.wait_for("Compiling the kernels")
    stop_and_check_nothing_is_left(stack, expected_status=128 + signal.SIGTERM)


def test_a_stop_before_the_stack_is_ready_names_the_signal(
    tmp_path: Path, started: list[RunningStack]
) -> None:
    stack = RunningStack(tmp_path)
    started.append(stack)
    stack.wait_until(lambda: bool(stack.processes(SERVER)))
    stop_and_check_nothing_is_left(stack, expected_status=128 + signal.SIGTERM)
    assert READY not in stack.output
    assert "Loading the model: " not in stack.output, "it was not done"


def test_a_second_interrupt_does_not_wait_for_requests_in_flight(
    tmp_path: Path, started: list[RunningStack]
) -> None:
    stack = RunningStack(tmp_path, drain_s=60)
    started.append(stack)
    stack.wait_for(READY)
    assert list(stack.releases.iterdir()) == []
    processes = stack.processes()
    stack.process.send_signal(signal.SIGINT)
    stack.wait_for("Stopping the router")
    time.sleep(0.5)
    assert len(stack.processes(SERVER)) == 1, "Triton must be there while the router drains"
    stack.process.send_signal(signal.SIGINT)
    assert stack.process.wait(timeout=patience(30)) == 0, "half of what it would drain for"
    assert [process for process in processes if is_live(process)] == []
    assert stack.shared_memory() == []


def test_an_invalid_router_setting_is_reported_before_anything_is_started(
    tmp_path: Path, started: list[RunningStack]
) -> None:
    stack = RunningStack(tmp_path, router={"max_body_byte": 2048})
    started.append(stack)
    assert stack.process.wait(timeout=patience(30)) == 2
    (line,) = stack.output.splitlines()
    assert line.startswith("[router] unknown setting max_body_byte: allowed are max_body_bytes, ")
    assert stack.logs == {}


def test_a_taken_port_is_reported_at_once(tmp_path: Path, started: list[RunningStack]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        stack = RunningStack(tmp_path, stack={"triton_metrics_port": server.getsockname()[1]})
        started.append(stack)
        assert stack.process.wait(timeout=patience(30)) == 2
    assert "is already in use; choose another with --triton-metrics-port" in stack.output
