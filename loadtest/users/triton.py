"""The pipeline as Triton's own clients ask for it: tritonclient over KServe's gRPC, one stream a user."""

from __future__ import annotations

import contextlib
import ipaddress
import queue
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput
from tritonclient.utils import InferenceServerException

from loadtest.results import RequestResult
from loadtest.tenants import Tenant

KIND = "triton"
_TIMEOUT_S = 300.0  # without a single response
_NUMPY = {"BYTES": np.object_, "INT32": np.int32, "UINT64": np.uint64, "BOOL": np.bool_}
# The kinds that the text of an error in a stream begins with, and what HTTP would have said.
_STATUSES = {
    "invalid_request": 400,
    "context_length_exceeded": 400,
    "unsupported": 400,
    "invalid_api_key": 401,
    "permission_denied": 403,
    "model_not_found": 404,
    "rate_limit_exceeded": 429,
    "insufficient_quota": 429,
    "overloaded": 503,
    "engine_failed": 503,
    "internal": 500,
}
_AGAIN = re.compile(r"try again in (\d+) s")
_Arrival = tuple[float, Any, "Exception | None"]


class TritonAsker:
    """One user's stream; it asks one thing at a time. Answers have as many tokens as were asked for."""

    def __init__(
        self,
        address: str,
        tenant: Tenant,
        began_s: float,
        told: Callable[[RequestResult], None],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._client = InferenceServerClient(address, channel_args=_channel_args(address))
        self._tenant = tenant
        self._began_s = began_s
        self._told = told
        self._clock = clock
        self._arrived: queue.Queue[_Arrival] | None = None

    def stream(self, model: str, prompt: str, tokens: int, seed: int) -> RequestResult:
        inputs = _inputs(prompt, tokens, seed)
        at_s = round(self._clock() - self._began_s, 6)
        result = RequestResult(KIND, at_s, self._tenant.name, self._tenant.tier, model, asked_tokens=tokens)
        try:
            self._send(model, inputs)
            self._read(result)
            result.status = 200
            result.ended_s = self._clock() - self._began_s - at_s
        except (InferenceServerException, queue.Empty) as error:
            result.ended_s = self._clock() - self._began_s - at_s
            _note_error(result, error)
            self._reset()
        except BaseException:  # the user is stopped in the middle: the rest of this answer is nobody's
            self._reset()
            raise
        finally:
            self._told(result)
        return result

    def close(self) -> None:
        self._reset()
        self._client.close()

    def _send(self, model: str, inputs: list[Any]) -> None:
        if self._arrived is None:
            arrived: queue.Queue[_Arrival] = queue.Queue()
            key = {"authorization": f"Bearer {self._tenant.key}"} if self._tenant.key else None
            self._client.start_stream(
                callback=lambda result, error: arrived.put((self._clock(), result, error)), headers=key
            )
            self._arrived = arrived
        tier = {"inflight_tier": self._tenant.tier}
        # A stream that has died refuses more requests; why it died waits in the queue.
        with contextlib.suppress(InferenceServerException):
            self._client.async_stream_infer(model, inputs, parameters=tier, enable_empty_final_response=True)

    def _read(self, result: RequestResult) -> None:
        assert self._arrived is not None
        latest_s = 0.0
        while True:
            at_s, response, error = self._arrived.get(timeout=_TIMEOUT_S)
            if error is not None:
                raise error
            message = response.get_response()
            result.release = message.model_version or result.release
            tokens = _number(response, "num_output_tokens")
            result.completion_tokens += tokens
            result.prompt_tokens = _number(response, "num_input_tokens") or result.prompt_tokens
            if response.as_numpy("text_output") is not None:
                if result.first_token_s is None:
                    result.first_token_s = at_s - self._began_s - result.at_s
                else:
                    result.longest_gap_s = max(result.longest_gap_s, at_s - latest_s)
                    result.gaps_s.append(round((at_s - latest_s) / max(1, tokens), 6))
                latest_s = at_s
                result.pieces += 1
            if message.parameters["triton_final_response"].bool_param:
                return

    def _reset(self) -> None:
        if self._arrived is not None:
            self._arrived = None
            self._client.stop_stream(cancel_requests=True)


def _note_error(result: RequestResult, error: Exception) -> None:
    if isinstance(error, queue.Empty):
        result.error = f"no response for {_TIMEOUT_S:g} s"
        return
    result.error = str(error)
    result.status = next((code for kind, code in _STATUSES.items() if f"{kind}: " in result.error), 0)
    if again := _AGAIN.search(result.error):
        result.retry_after_s = float(again[1])


def _channel_args(address: str) -> list[tuple[str, int]]:
    host = address.rpartition(":")[0].strip("[]")
    # A channel of its own for each user; those with the same arguments would share one connection.
    options = [("grpc.use_local_subchannel_pool", 1)]
    try:
        is_near = host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_near = False
    # gRPC would ask the proxy of the environment for this machine's own address too.
    return [*options, ("grpc.enable_http_proxy", 0)] if is_near else options


def _inputs(prompt: str, tokens: int, seed: int) -> list[Any]:
    return [
        _tensor("text_input", "BYTES", [prompt.encode()]),
        _tensor("max_tokens", "INT32", [tokens]),
        _tensor("min_tokens", "INT32", [tokens]),
        _tensor("seed", "UINT64", [seed]),
        _tensor("stream", "BOOL", [True]),
        _tensor("exclude_input_in_output", "BOOL", [True]),
        _tensor("return_num_input_tokens", "BOOL", [True]),
        _tensor("return_num_output_tokens", "BOOL", [True]),
    ]


def _tensor(name: str, dtype: str, values: Sequence[Any]) -> Any:
    tensor = InferInput(name, [1, len(values)], dtype)
    tensor.set_data_from_numpy(np.array([values], dtype=_NUMPY[dtype]))
    return tensor


def _number(response: Any, name: str) -> int:
    values = response.as_numpy(name)
    return 0 if values is None else int(values.flatten()[0])
