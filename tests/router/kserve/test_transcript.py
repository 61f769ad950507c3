from __future__ import annotations

import json
from pathlib import Path

from python_backend.wire import codec
from router.core.record import Record
from router.kserve.answers import Answer, Output
from router.kserve.messages import read_request
from router.kserve.transcript import Transcript
from router.telemetry.prompt_log import PromptLog
from tests.router.kserve.test_messages import OFFERS, usual


def said(text: str, row: int = 0) -> Answer:
    return Answer((Output("text_output", "BYTES", (1,), codec.encode("BYTES", [text])),), False, row)


def test_prompts_and_answers_are_logged_row_by_row(tmp_path: Path) -> None:
    log = PromptLog(tmp_path, keep_days=1)
    log.start()
    record = Record("grpc ModelInfer", "infer-1")
    transcript = Transcript(log, record, read_request(OFFERS, record, usual()))
    for answer in (said("second", row=1), said("fir"), said("st"), Answer((), True)):
        transcript.hear(answer)
    transcript.write()
    log.stop()
    (file,) = tmp_path.rglob("*.jsonl")
    entry = json.loads(file.read_text())
    assert ["a"] in entry.values()
    assert ["first", "second"] in entry.values()


def test_without_a_log_nothing_is_kept() -> None:
    record = Record("grpc ModelInfer", "infer-1")
    transcript = Transcript(None, record, read_request(OFFERS, record, usual()))
    transcript.hear(said("secret"))
    transcript.write()
    assert "secret" not in str(vars(transcript))
