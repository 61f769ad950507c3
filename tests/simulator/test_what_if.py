"""Questions as JSON, and what the program says to those that cannot be used."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from loadtest.traces import TraceError
from simulator.what_if import EXIT_USAGE, MOST_REQUESTS, answer

ENGINE = {"cost": {"base_ms": 12, "prefill_token_ms": 0.12, "decode_sequence_ms": 0.25}}
BURST = {"name": "burst", "rows": [[0.01 * at, 200, 60, f"t{at % 3}", None] for at in range(300)]}


def ask(trace: dict[str, Any], *variants: dict[str, Any], **more: Any) -> dict[str, Any]:
    return answer({"trace": trace, "engine": ENGINE, "variants": list(variants), **more})


def test_two_policies_are_compared_on_the_same_requests() -> None:
    terms = {"standard": {"first_token_s": 1.0, "inter_token_s": None}}
    found = ask(
        BURST,
        {"policy": "objectives", "objectives": terms},
        {"policy": "first-come", "objectives": terms},
    )
    ours, theirs = (each["figures"] for each in found["variants"])
    assert found["trace"]["requests"] == ours["offered"] == theirs["offered"] == 300
    assert ours["refused"] > 0 == theirs["refused"]
    assert ours["good"] > theirs["good"]
    assert [each["policy"] for each in found["variants"]] == ["objectives", "first-come"]
    assert max(each["waiting"] + each["running"] for each in found["variants"][0]["moments"]) > 10


def test_more_replicas_keep_more_and_a_higher_rate_less() -> None:
    terms = {"standard": {"first_token_s": 0.5}}
    one, two = (
        ask(BURST, {"policy": "objectives", "replicas": replicas, "objectives": terms}) for replicas in (1, 2)
    )
    slow = ask(BURST, {"policy": "objectives", "objectives": terms}, rate=0.1)
    good = [each["variants"][0]["figures"]["good"] for each in (one, two, slow)]
    assert good[0] < good[1]
    assert good[0] < good[2]


@pytest.mark.parametrize(
    "text",
    [
        "arrival_s,prompt_tokens,output_tokens,tier\n5,10,4,batch\n6,10,4,standard\n",
        '{"timestamp": 5000, "input_length": 10, "output_length": 4}\n'
        '{"timestamp": 6000, "input_length": 10, "output_length": 4}\n',
    ],
)
def test_an_uploaded_trace_may_be_csv_or_json_lines(text: str) -> None:
    found = ask({"name": "mine", "text": text, "tiers": {"interactive": 1.0}}, {"policy": "cap"})
    assert found["trace"] == {"name": "mine", "requests": 2, "duration_s": 1.0, "shortened": 0}
    tiers = {each["tier"] for each in found["variants"][0]["figures"]["tiers"]}
    assert tiers in ({"batch", "standard"}, {"interactive"})


def test_a_trace_that_cannot_be_used_is_refused_by_name() -> None:
    with pytest.raises(TraceError, match="the trace: no column for 'prompt'"):
        ask({"name": "x", "text": "arrival_s\n1\n"}, {"policy": "cap"})
    with pytest.raises(TraceError, match="no requests were recorded in that time"):
        ask({"name": "x", "rows": []}, {"policy": "cap"})
    with pytest.raises(TraceError, match="allowed: up to 100,000"):
        ask({"name": "x", "rows": [[0.0, 1, 1]] * (MOST_REQUESTS + 1)}, {"policy": "cap"})
    with pytest.raises(TraceError, match="these are 8,668,896 requests"):
        ask(BURST, {"policy": "cap"}, duration_s=86_400.0)
    with pytest.raises(ValueError, match="there is no tier 'gold'"):
        ask({"name": "x", "rows": [[0.0, 1, 1, "t", "gold"]]}, {"policy": "cap"})


def test_as_a_program_it_answers_on_stdout_and_complains_on_stderr() -> None:
    def run(question: dict[str, Any]) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "simulator.what_if"]
        return subprocess.run(
            command, input=json.dumps(question), capture_output=True, text=True, timeout=120, check=False
        )

    good = run({"trace": BURST, "engine": ENGINE, "variants": [{"policy": "cap"}]})
    assert good.returncode == 0, good.stderr
    assert json.loads(good.stdout)["trace"]["requests"] == 300
    bad = run({"trace": {"name": "x", "text": "nothing"}, "engine": ENGINE, "variants": [{"policy": "cap"}]})
    assert (bad.returncode, bad.stdout) == (EXIT_USAGE, "")
    assert "the trace" in bad.stderr
