from __future__ import annotations

from typing import Any

import msgspec
from tritonclient.grpc import service_pb2

from python_backend.wire import codec
from python_backend.wire.engine_report import EngineReport
from python_backend.wire.tensors import ENSEMBLE, TENSORRT_LLM
from python_backend.wire.tiers import Tier
from router.core.generation import LITERAL_MARK, Delta, GenerationCall, LoggedToken
from router.core.images import Image
from router.core.trace import Trace, TraceContext
from router.triton.messages import (
    GenerateRequests,
    configure_request,
    drop_request,
    is_final,
    read_delta,
    read_engine_report,
    report_request,
    stop_request,
)

CALL = GenerationCall(
    request_id="chatcmpl-1",
    prompt="Grüße 😀",
    max_tokens=7,
    seed=2**64 - 1,
    tenant="ann",
    stop=("a", "bé"),
    temperature=0.5,
    top_k=3,
    top_p=0.25,
    min_tokens=2,
    repetition_penalty=1.5,
    presence_penalty=-0.5,
    frequency_penalty=0.125,
    add_special_tokens=False,
)


def inputs(message: Any) -> dict[str, tuple[str, list[int], list[Any]]]:
    return {
        tensor.name: (tensor.datatype, list(tensor.shape), codec.decode(tensor.datatype, raw))
        for tensor, raw in zip(message.inputs, message.raw_input_contents, strict=True)
    }


def test_a_guide_and_a_bias_are_sent_only_on_request() -> None:
    requests = GenerateRequests("ensemble")
    plain = inputs(requests.build(CALL))
    asked = msgspec.structs.replace(CALL, guide=("json_schema", '{"a": 1}'), logit_bias={"5": -1.5})
    message = requests.build(asked)
    found = inputs(message)
    assert found["guided_decoding_guide_type"] == ("BYTES", [1, 1], [b"json_schema"])
    assert found["guided_decoding_guide"] == ("BYTES", [1, 1], [b'{"a": 1}'])
    assert list(found)[: len(plain)] == list(plain)
    assert message.parameters["inflight_logit_bias"].string_param == '{"5":-1.5}'
    assert "inflight_logit_bias" not in requests.build(CALL).parameters


def test_what_the_contract_has_no_tensors_for_comes_as_parameters() -> None:
    requests = GenerateRequests("ensemble")
    call = msgspec.structs.replace(CALL, min_p=0.05, stop_token_ids=(2, 11), shows_special_tokens=True)
    parameters = requests.build(call).parameters
    assert parameters["inflight_min_p"].string_param == "0.05"
    assert parameters["inflight_stop_token_ids"].string_param == "[2,11]"
    assert parameters["inflight_special_tokens"].bool_param
    assert not {"inflight_min_p", "inflight_stop_token_ids"} & set(requests.build(CALL).parameters)


def test_a_call_becomes_the_tensors_of_the_contract() -> None:
    message = GenerateRequests("ensemble").build(CALL)
    assert (message.model_name, message.id) == ("ensemble", "chatcmpl-1")
    assert inputs(message) == {
        "text_input": ("BYTES", [1, 1], ["Grüße 😀".encode()]),
        "max_tokens": ("INT32", [1, 1], [7]),
        "stop_words": ("BYTES", [1, 4], [b"a", "bé".encode(), b"", b""]),
        "top_k": ("INT32", [1, 1], [3]),
        "top_p": ("FP32", [1, 1], [0.25]),
        "temperature": ("FP32", [1, 1], [0.5]),
        "repetition_penalty": ("FP32", [1, 1], [1.5]),
        "min_tokens": ("INT32", [1, 1], [2]),
        "presence_penalty": ("FP32", [1, 1], [-0.5]),
        "frequency_penalty": ("FP32", [1, 1], [0.125]),
        "seed": ("UINT64", [1, 1], [2**64 - 1]),
        "return_num_input_tokens": ("BOOL", [1, 1], [True]),
        "return_num_output_tokens": ("BOOL", [1, 1], [True]),
        "stream": ("BOOL", [1, 1], [True]),
        "exclude_input_in_output": ("BOOL", [1, 1], [True]),
        "return_perf_metrics": ("BOOL", [1, 1], [True]),
    }
    parameters = message.parameters
    assert parameters["tenant"].string_param == "ann"
    assert parameters["add_special_tokens"].bool_param is False
    assert parameters["triton_enable_empty_final_response"].bool_param is True


def test_every_request_has_the_same_inputs_so_that_triton_can_batch_them() -> None:
    requests = GenerateRequests("ensemble")
    plain = GenerationCall(request_id="x", prompt="y", max_tokens=1, seed=0)
    shapes = [
        [(tensor.name, tuple(tensor.shape)) for tensor in requests.build(call).inputs]
        for call in (CALL, plain)
    ]
    assert shapes[0] == shapes[1]
    assert {name for name, _ in shapes[0]} <= {tensor.name for tensor in ENSEMBLE.inputs}


def test_ignoring_the_end_sends_an_end_id_that_no_token_has() -> None:
    call = GenerationCall(request_id="x", prompt="y", max_tokens=1, seed=0, ignore_eos=True)
    assert inputs(GenerateRequests("ensemble").build(call))["end_id"] == ("INT32", [1, 1], [-1])


def test_building_one_request_does_not_affect_the_next() -> None:
    requests = GenerateRequests("ensemble")
    requests.build(CALL)
    again = requests.build(GenerationCall(request_id="x", prompt="y", max_tokens=1, seed=0))
    assert len(again.raw_input_contents) == len(again.inputs)
    assert again.parameters["tenant"].string_param == "local"


def test_stop_strings_beyond_what_a_request_has_room_for_are_left_to_the_router() -> None:
    message = GenerateRequests("ensemble").build(msgspec.structs.replace(CALL, stop=tuple("abcdef")))
    assert inputs(message)["stop_words"] == ("BYTES", [1, 4], [b"a", b"b", b"c", b"d"])


def test_a_stop_carries_the_request_id_and_what_the_engine_demands() -> None:
    message = stop_request("tensorrt_llm", "chatcmpl-1")
    assert (message.model_name, message.id) == ("tensorrt_llm", "chatcmpl-1")
    assert inputs(message) == {
        "input_ids": ("INT32", [1, 1], [0]),
        "input_lengths": ("INT32", [1, 1], [1]),
        "request_output_len": ("INT32", [1, 1], [1]),
        "stop": ("BOOL", [1, 1], [True]),
    }
    required = {tensor.name for tensor in TENSORRT_LLM.inputs if not tensor.optional}
    assert required <= {tensor.name for tensor in message.inputs}


def response(*outputs: tuple[str, str, list[Any]]) -> Any:
    message = service_pb2.ModelInferResponse()
    for name, dtype, values in outputs:
        message.outputs.add(name=name, datatype=dtype, shape=[1])
        message.raw_output_contents.append(codec.encode(dtype, values))
    return message


def test_an_engine_that_does_not_know_a_command_reads_it_as_a_stop_of_no_request() -> None:
    report = report_request("tensorrt_llm")
    told = configure_request("tensorrt_llm", {Tier.INTERACTIVE: 40.5, Tier.BATCH: None})
    for message in (report, told):
        assert inputs(message) == inputs(stop_request("tensorrt_llm", message.id))
        assert not message.id.startswith(("chatcmpl-", "cmpl-"))
    assert report.parameters["inflight_report"].bool_param
    wanted = {"inter_token_ms": {"interactive": 40.5, "standard": None, "batch": None}}
    assert msgspec.json.decode(told.parameters["inflight_configure"].string_param) == wanted


def test_a_report_is_found_by_its_output_name() -> None:
    report = EngineReport(8, 512, 8, 512, 100, 4, 16, 2, 0, True)
    message = response(("finish_reason", "BYTES", ["end_id"]), ("engine_report", "BYTES", [report.to_text()]))
    assert read_engine_report(message) == report
    assert read_engine_report(service_pb2.ModelInferResponse()) is None


def test_outputs_are_read_by_name_and_others_skipped() -> None:
    message = response(
        ("cum_log_probs", "FP32", [0.5]),
        ("num_output_tokens", "INT32", [3]),
        ("text_output", "BYTES", ["é"]),
        ("num_input_tokens", "INT32", [9]),
        ("finish_reason", "BYTES", ["length"]),
    )
    assert read_delta(message) == Delta("é", 3, 9, "length")


def test_an_empty_finish_reason_is_none() -> None:
    assert read_delta(response(("finish_reason", "BYTES", [""]))).finish is None


def test_a_response_without_outputs_is_an_empty_delta() -> None:
    assert read_delta(response()) == Delta("")


def test_the_final_flag_is_read_without_being_created() -> None:
    message = response()
    assert not is_final(message)
    assert not message.parameters
    message.parameters["triton_final_response"].bool_param = True
    assert is_final(message)


def test_options_without_a_contract_tensor_are_sent_as_parameters() -> None:
    requests = GenerateRequests("ensemble")
    asked = msgspec.structs.replace(CALL, top_log_probs=0, tier="batch", echo=True)
    parameters = requests.build(asked).parameters
    assert parameters["inflight_top_log_probs"].int64_param == 0
    assert parameters["inflight_top_log_probs"].WhichOneof("parameter_choice") == "int64_param"
    assert parameters["inflight_tier"].string_param == "batch"
    assert parameters["inflight_echo"].bool_param
    for call in (CALL, msgspec.structs.replace(CALL, echo=True)):
        names = set(requests.build(call).parameters)
        assert not names & {"inflight_top_log_probs", "inflight_tier", "inflight_echo"}


def test_a_trace_context_is_sent_as_parameters() -> None:
    trace = Trace("GET", {}, TraceContext(0xABC, 0x1, True, "congo=1"))
    parameters = GenerateRequests("ensemble").build(msgspec.structs.replace(CALL, trace=trace)).parameters
    assert parameters["inflight_trace"].bool_param
    assert parameters["traceparent"].string_param == f"00-{'0' * 29}abc-{'0' * 15}1-01"
    assert parameters["tracestate"].string_param == "congo=1"
    names = set(GenerateRequests("ensemble").build(CALL).parameters)
    assert not names & {"inflight_trace", "traceparent", "tracestate"}


def test_steps_are_read_row_after_row() -> None:
    steps = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]
    assert list(read_delta(response(("engine_steps", "INT64", steps))).steps) == steps


def test_the_parts_of_a_request_are_sent_by_the_contracts_names() -> None:
    requests = GenerateRequests("ensemble")
    prompt = requests.build(msgspec.structs.replace(CALL, part="context_only"))
    assert prompt.parameters["request_type"].string_param == "context_only"
    assert "context_phase_params" not in inputs(prompt)
    answer = msgspec.structs.replace(CALL, part="generation_only", context=b"{}", prompt_ids=(5, 6))
    found = inputs(requests.build(answer))
    assert found["context_phase_params"] == ("UINT8", [1, 2], list(b"{}"))
    assert "request_type" not in requests.build(CALL).parameters


def test_what_an_engine_says_of_a_prompt_is_read_as_it_is() -> None:
    message = response(
        ("finish_reason", "BYTES", ["length"]), ("out_context_phase_params", "UINT8", [1, 0, 255])
    )
    assert read_delta(message).context == b"\x01\x00\xff"


def test_prompt_ids_are_sent_beside_an_empty_text() -> None:
    call = msgspec.structs.replace(CALL, prompt="", prompt_ids=(5, 6), ignore_eos=True)
    found = inputs(GenerateRequests("ensemble").build(call))
    assert found["prompt_ids"] == ("INT32", [1, 2], [5, 6])
    assert found["text_input"] == ("BYTES", [1, 1], [b""])


def test_tokens_are_read_row_by_row() -> None:
    message = response(
        ("text_output", "BYTES", ["é"]),
        ("top_log_probs", "FP32", [float("nan")] * 2 + [-0.5, -0.25, -1.0, -2.0]),
        ("top_tokens", "BYTES", [b"<s>", b"<s>", b"\xc3", b"a", b"\xa9", b"b"]),
        ("token_characters", "INT32", [-1, 0, 1]),
        ("cached_tokens", "INT32", [4]),
    )
    delta = read_delta(message)
    assert delta.cached_tokens == 4
    assert delta.tokens == (
        LoggedToken(b"<s>", None, 0, is_hidden=True),
        LoggedToken(b"\xc3", -0.5, 0, top=((b"a", -0.25),)),
        LoggedToken(b"\xa9", -1.0, 1, top=((b"b", -2.0),)),
    )


def test_a_marked_prompt_goes_out_with_its_mark() -> None:
    call = msgspec.structs.replace(CALL, marked_prompt=f"<{LITERAL_MARK}s>")
    message = GenerateRequests("ensemble").build(call)
    assert inputs(message)["text_input"][2] == [f"<{LITERAL_MARK}s>".encode()]
    assert message.parameters["inflight_literal_mark"].string_param == LITERAL_MARK


def test_requests_to_an_adapter_name_it_and_others_do_not() -> None:
    plain = GenerateRequests("ensemble").build(CALL)
    adapted = GenerateRequests("ensemble", "tiny.LORA.sql.1").build(CALL)
    assert "inflight_adapter" not in plain.parameters
    assert adapted.parameters["inflight_adapter"].string_param == "tiny.LORA.sql.1"
    assert adapted.model_name == "ensemble"
    assert [each.name for each in adapted.inputs] == [each.name for each in plain.inputs]


def test_an_engine_is_told_to_drop_an_adapter_by_a_stop_of_nobody() -> None:
    message = drop_request("tensorrt_llm", "tiny.LORA.sql.1")
    assert message.parameters["inflight_drop_adapter"].string_param == "tiny.LORA.sql.1"
    assert message.id == "report"


def test_images_are_sent_as_one_input_of_files() -> None:
    requests = GenerateRequests("ensemble")
    images = tuple(Image(data, "", "image/png", 1, 1) for data in (b"\x89PNG", b"\xff\xd8"))
    found = inputs(requests.build(msgspec.structs.replace(CALL, images=images)))
    assert found["images"] == ("BYTES", [1, 2], [b"\x89PNG", b"\xff\xd8"])
    assert "images" not in inputs(requests.build(CALL))
