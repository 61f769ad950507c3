from __future__ import annotations

import json
from pathlib import Path

from python_backend.wire import codec
from router.core.record import Record
from router.kserve.answers import Output, Texts
from router.kserve.messages import read_request
from router.telemetry.prompt_log import PromptLog
from tests.fakes.delivery import FakeDelivery
from tests.router.kserve.test_messages import OFFERS, usual


def said(text: str) -> dict[str, Output]:
    return {"text_output": Output("text_output", "BYTES", (1,), codec.encode("BYTES", [text]))}


def test_texts_are_put_together_by_row_and_sequence() -> None:
    texts = Texts()
    for row, sequence, outputs in (
        (1, 0, said("second")),
        (0, 0, said("fir")),
        (0, 0, said("st")),
        (0, 1, {}),
    ):
        texts.add(row, sequence, outputs)
    assert texts.all() == ["first", "second"]


def test_the_prompt_log_gets_the_prompts_of_a_generation_and_keeps_its_answer(tmp_path: Path) -> None:
    log = PromptLog(tmp_path, keep_days=1)
    log.start()
    record = Record("grpc ModelInfer", "infer-1")
    asked = read_request(usual(), OFFERS.choose("tiny", "", record))
    job = asked.offer.job(asked, record, True, FakeDelivery())
    log.begun(job, record)
    log.ended(job, record, None)
    log.stop()
    (file,) = tmp_path.rglob("*.jsonl")
    assert ["a"] in json.loads(file.read_text()).values()


def test_a_generation_whose_answer_nobody_wants_keeps_nothing() -> None:
    record = Record("grpc ModelInfer", "infer-1")
    asked = read_request(usual(), OFFERS.choose("tiny", "", record))
    job = asked.offer.job(asked, record, True, FakeDelivery())
    assert (list(job.told()), job.answered()) == ([], None)
