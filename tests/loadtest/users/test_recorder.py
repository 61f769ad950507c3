from __future__ import annotations

from pathlib import Path

from loadtest.results import RequestResult
from loadtest.users.recorder import Recorder, RecordReader


def test_recorded_results_are_read_back_once(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 100.0)
    reader = RecordReader(tmp_path)
    first = RequestResult("chat", 0.5, "acme", status=200, first_token_s=0.1, gaps_s=[0.01, 0.02])
    recorder.note(first)
    recorder.note_users(1.0, 4, 0.003)
    assert reader.read() == [first]
    assert reader.read() == []
    second = RequestResult("triton", 1.5, error="broken")
    recorder.note(second)
    assert reader.read() == [second]
    assert reader.recorded.began_s == 100.0
    assert sum(reader.recorded.users.values()) == 4
    assert reader.recorded.late_s == [0.003]
    recorder.close()


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    recorder = Recorder(tmp_path, 1.0)
    recorder.note(RequestResult("chat", 0.5))
    recorder.close()
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    reader = RecordReader(tmp_path)
    assert reader.read() == []
    path.write_bytes(whole)
    assert len(reader.read()) == 1


def test_a_restarted_run_forgets_the_former(tmp_path: Path) -> None:
    former = Recorder(tmp_path, 1.0)
    former.note(RequestResult("chat", 0.5))
    reader = RecordReader(tmp_path)
    reader.read()
    former.close()
    former.note(RequestResult("chat", 0.7))  # a user that ends after its run
    recorder = Recorder(tmp_path, 50.0)
    recorder.note(RequestResult("completions", 0.1))
    recorder.close()
    assert [each.kind for each in reader.read()] == ["completions"]
    assert reader.recorded.began_s == 50.0
