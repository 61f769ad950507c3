"""The contract on `inflight_runtime = llm`: the same tests, against a stand-in of TensorRT-LLM's LLM API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.stack import RunningStack, running_stack
from python_backend.engine.runtimes.trtllm.package import PATH_VARIABLE
from tests.stack import test_contract_outputs as contract_outputs
from tests.stack import test_disconnect as disconnect
from tests.stack import test_sharing as sharing
from tests.stack import test_streaming_text as streaming_text
from tests.stack import test_triton_clients as triton_clients
from tests.stack.conftest import TinyModels

pytestmark = [pytest.mark.stack, pytest.mark.timeout(180)]

STAND_IN = Path(__file__).parents[1] / "fakes" / "tensorrt_llm"

# Collected here a second time, with the fixtures below in the places of the usual ones.
CONFORMANCE = {
    contract_outputs: (
        "a_guide_shapes_the_answer",
        "a_prompt_of_ids_is_not_tokenized",
        "a_repeated_prompt_is_found_in_the_cache_unless_its_salt_differs",
        "a_row_that_fails_leaves_the_others_alone",
        "log_probs_are_those_of_the_logits",
        "perf_metrics_have_true_times_in_order",
        "rows_of_one_request_are_answered_as_if_they_were_alone",
        "sequences_of_one_prompt_differ_and_repeat_with_the_seed",
        "streamed_log_probs_add_up",
        "the_metrics_have_the_contracts_names_and_labels",
        "top_log_probs_come_with_the_bytes_of_their_tokens",
    ),
    disconnect: (
        "leaving_a_stream_after_five_tokens_frees_the_engine",
        "leaving_at_once_frees_the_engine",
        "stop_by_request_id_ends_a_running_request",
        "stopping_an_unknown_request_is_not_an_error",
    ),
    sharing: (
        "a_seed_gives_the_same_text_alone_and_among_twenty_others",
        "a_system_prompt_shared_by_many_requests_at_once_is_computed_once",
        "tenants_never_meet_in_the_cache_by_default",
    ),
    streaming_text: ("a_stream_without_an_id_keeps_its_characters_whole",),
    triton_clients: ("without_streaming_one_response_holds_prompt_and_answer",),
}
for module, names in CONFORMANCE.items():
    globals().update({f"test_{name}": getattr(module, f"test_{name}") for name in names})


@pytest.fixture(scope="module")
def stack(data_dir: Path, tiny_models: TinyModels) -> Iterator[RunningStack]:
    engine = {
        "inflight_runtime": "llm",
        "inflight_max_batch_size": "64",
        "inflight_tokens_per_block": "16",
        "max_tokens_in_paged_kv_cache": "16384",
        "inflight_tenant_cache_isolation": "true",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(PATH_VARIABLE, str(STAND_IN))
        with running_stack(engine, str(tiny_models.usual), data_dir, embeddings=False) as running:
            yield running


@pytest.fixture(scope="module")
def steady_stack(stack: RunningStack) -> RunningStack:
    return stack


@pytest.fixture(scope="module")
def long_answer_tokens() -> int:
    return 1500


def test_the_launcher_names_the_runtime_and_the_device(stack: RunningStack) -> None:
    assert "computes on TensorRT-LLM 1.3.0 on the device that it chooses" in stack.output()
