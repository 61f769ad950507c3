"""Which runtime is chosen, from what a machine has."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.engine.host.device import Gpu
from python_backend.engine.runtimes.choice import Facts, choose_runtime, decide_runtime, missing_for_llm
from python_backend.engine.runtimes.trtllm.package import PATH_VARIABLE, LlmPackage, visible_device
from python_backend.wire.errors import InflightError
from python_backend.wire.parameters import DEVICES, RUNTIMES, EngineParameters

NEW, OLD = LlmPackage((1, 3), "1.3.0"), LlmPackage((1, 2), "1.2.1")
H200 = Gpu("NVIDIA H200", (9, 0))
STAND_IN = Path(__file__).parents[2] / "fakes" / "tensorrt_llm"


def asked(runtime: str = "auto", device: str = "auto", gpu: int = 0) -> EngineParameters:
    return EngineParameters(
        "inflight_fused_batching",
        "/model",
        inflight_runtime=runtime,
        inflight_device=device,
        gpu_device_ids=gpu,
    )


def test_tensorrt_llm_is_chosen_where_it_is_installed_with_a_gpu() -> None:
    chosen = decide_runtime(asked(), Facts(NEW, (H200,)))
    assert (chosen.name, chosen.computes_on) == ("llm", "TensorRT-LLM 1.3.0 on GPU 0 (NVIDIA H200)")


@pytest.mark.parametrize(
    "facts",
    [
        Facts(None, (H200,)),
        Facts(OLD, (H200,)),
        Facts(NEW, ()),
        Facts(NEW, (H200,), is_checkpoint=False),
    ],
)
def test_our_engine_is_chosen_everywhere_else(facts: Facts) -> None:
    assert decide_runtime(asked(), facts).name == "engine"
    assert decide_runtime(asked(device="cpu"), Facts(NEW, (H200,))).name == "engine"
    assert decide_runtime(asked(gpu=1), Facts(NEW, (H200,))).name == "engine"


@pytest.mark.parametrize(
    ("facts", "device", "words"),
    [
        (Facts(None), "auto", "is not installed here"),
        (Facts(OLD), "auto", "is 1.2.1; 1.3 or newer is needed"),
        (Facts(NEW), "cpu", "inflight_device is 'cpu'"),
        (Facts(NEW, is_checkpoint=False), "auto", "/model is no Hugging Face checkpoint"),
    ],
)
def test_a_runtime_requested_by_name_is_refused_with_what_is_missing(
    facts: Facts, device: str, words: str
) -> None:
    with pytest.raises(InflightError, match=words):
        decide_runtime(asked("llm", device), facts)


def test_the_package_decides_whether_a_gpu_is_needed() -> None:
    chosen = decide_runtime(asked("llm"), Facts(NEW))
    assert (chosen.name, chosen.gpu) == ("llm", None)


@given(
    st.sampled_from(RUNTIMES),
    st.sampled_from(("auto", *DEVICES)),
    st.sampled_from([None, OLD, NEW]),
    st.booleans(),
    st.booleans(),
)
def test_the_chosen_runtime_exists_and_is_the_requested_one(
    runtime: str, device: str, package: LlmPackage | None, has_gpu: bool, is_checkpoint: bool
) -> None:
    facts = Facts(package, (H200,) if has_gpu else (), is_checkpoint)
    if runtime == "llm" and missing_for_llm(asked(runtime, device), facts):
        with pytest.raises(InflightError, match="inflight_runtime is 'llm', and"):
            decide_runtime(asked(runtime, device), facts)
        return
    chosen = decide_runtime(asked(runtime, device), facts)
    assert chosen.name in RUNTIMES[1:]
    assert runtime in ("auto", chosen.name)


def test_the_package_is_found_in_the_folder_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATH_VARIABLE, str(STAND_IN))
    monkeypatch.syspath_prepend(str(STAND_IN))  # so that it leaves with the test
    (tmp_path / "config.json").write_text("{}")
    parameters = EngineParameters("inflight_fused_batching", str(tmp_path), inflight_runtime="llm")
    assert choose_runtime(parameters).package == LlmPackage((1, 3), "1.3.0")


@pytest.mark.parametrize(
    ("visible", "number", "name"),
    [
        (None, 0, "0"),
        (None, 2, "2"),
        ("4,5", 1, "5"),
        ("GPU-1f, GPU-2e", 1, "GPU-2e"),
        ("4", 3, ""),
        ("", 0, ""),
    ],
)
def test_a_gpus_number_counts_among_the_visible_ones(visible: str | None, number: int, name: str) -> None:
    assert visible_device(visible, number) == name
