"""What the `embeddings` model can be told, and what it refuses by name."""

from __future__ import annotations

import pytest

from python_backend.wire.encoder_parameters import EncoderParameters, parse_encoder_parameters
from python_backend.wire.errors import InflightError


def test_nothing_said_is_fp32_on_the_cpu_and_bf16_on_a_gpu() -> None:
    on_cpu = parse_encoder_parameters({"checkpoint_dir": "/m", "threads": "", "inflight_precision": ""})
    assert on_cpu == EncoderParameters(None, "cpu", 0.1, "auto")
    assert on_cpu.precision == "fp32"
    assert parse_encoder_parameters({"device": "cuda", "inflight_precision": "auto"}).precision == "bf16"


def test_what_is_said_holds() -> None:
    told = parse_encoder_parameters({"threads": "3", "inflight_precision": "int8"})
    assert (told.threads, told.precision) == (3, "int8")
    assert parse_encoder_parameters({"device": "cuda", "gpu_memory_share": "0.5"}).gpu_memory_share == 0.5


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (
            {"inflight_precision": "int4"},
            r"inflight_precision is 'int4'; allowed: auto, fp32, int8 \(an encoder on the CPU\)",
        ),
        (
            {"inflight_precision": "int8", "device": "cuda"},
            r"inflight_precision is 'int8'; allowed: auto, bf16 \(device is cuda, where an encoder computes",
        ),
        ({"device": "tpu"}, "device is 'tpu'; allowed: cpu or cuda"),
        ({"gpu_memory_share": "nan"}, "gpu_memory_share is 'nan'; allowed: above 0, at most 1"),
        ({"gpu_memory_share": "2"}, "gpu_memory_share is '2'; allowed: above 0, at most 1"),
        *(
            ({"threads": each}, f"threads is '{each}'; allowed: 1 to 256")
            for each in ("0", "-1", "many", "257", "½")
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(raw: dict[str, str], said: str) -> None:
    with pytest.raises(InflightError, match=f"^parameter {said}"):
        parse_encoder_parameters(raw)
