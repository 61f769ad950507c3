from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from python_backend.wire import codec
from python_backend.wire.errors import ErrorKind, InflightError
from python_backend.wire.tensors import ENSEMBLE
from router.kserve.answers import Answer, Output, join, read_outputs
from router.kserve.prompts import OUTPUTS
from tests.router.kserve.asking import is_clear, outcome

NAMES = st.sampled_from([*(tensor.name for tensor in ENSEMBLE.outputs), "internal"])


def text(value: str) -> Output:
    return Output("text_output", "BYTES", (1,), codec.encode("BYTES", [value]))


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(
            NAMES,
            st.sampled_from(["BYTES", "INT32", "FP32", "STRANGE"]),
            st.lists(st.integers(-1, 3), max_size=3),
            st.binary(max_size=16),
        ),
        max_size=4,
    )
)
def test_an_answer_that_breaks_the_contract_is_the_engines_fault(
    outputs: list[tuple[str, str, list[int], bytes]],
) -> None:
    response = service_pb2.ModelInferResponse()
    for name, dtype, shape, raw in outputs:
        response.outputs.add(name=name, datatype=dtype, shape=shape)
        response.raw_output_contents.append(raw)
    found = outcome(lambda: read_outputs(OUTPUTS, response))
    assert is_clear(found, ErrorKind.ENGINE_FAILED)
    if not isinstance(found, InflightError):
        assert "internal" not in found
        for output in found.values():
            assert len(output.elements()) == output.count


def test_outputs_without_their_bytes_are_not_read() -> None:
    response = service_pb2.ModelInferResponse()
    response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
    with pytest.raises(InflightError):
        read_outputs(OUTPUTS, response)


def test_rows_and_sequences_are_joined_in_their_order() -> None:
    answers = [
        Answer((text("1,1"),), final=False, row=1, sequence=1),
        Answer((text("0,0"),), final=False),
        Answer((), final=False),
        Answer((text("1,0"),), final=True, row=1),
    ]
    (joined,) = join(answers)
    assert (joined.shape, joined.elements()) == ((3,), ["0,0", "1,0", "1,1"])
    assert join([Answer((), final=True)]) == ()


def test_rows_of_different_shapes_cannot_be_joined() -> None:
    def log_probs(count: int) -> Output:
        return Output("output_log_probs", "FP32", (1, 1, count), bytes(4 * count))

    answers = [Answer((log_probs(2),), False), Answer((log_probs(3),), True, row=1)]
    with pytest.raises(InflightError, match="request it as a stream"):
        join(answers)
