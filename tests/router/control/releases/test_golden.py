from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from python_backend.wire.errors import ErrorKind, InflightError
from router.control.releases.golden import GoldenRunner, is_as_expected
from router.control.releases.records import GoldenPrompt
from router.core.manifest import Manifest
from tests.fakes.pipeline import FakePipeline, words
from tests.router.control.releases.values import manifest

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"$ref": "#/$defs/age"}},
    "required": ["name", "age"],
    "$defs": {"age": {"type": "integer"}},
}
FOUR = GoldenPrompt("2+2?", contains="4", max_tokens=8)


def runner(pipeline: FakePipeline, timeout_s: float = 5.0) -> GoldenRunner:
    def of(_: Manifest) -> FakePipeline:
        return pipeline

    return GoldenRunner(of, timeout_s)


@pytest.mark.parametrize(
    ("golden", "text", "holds"),
    [
        (GoldenPrompt("p", contains="4"), "it is 4.", True),
        (GoldenPrompt("p", contains="4"), "it is four", False),
        (GoldenPrompt("p", equals="4"), " 4\n", True),
        (GoldenPrompt("p", equals="4"), "4.", False),
        (GoldenPrompt("p", matches=r"^\d+$"), "42", True),
        (GoldenPrompt("p", matches=r"^\d+$"), "42!", False),
        (GoldenPrompt("p", contains="4", matches="x"), "4", False),
        (GoldenPrompt("p", similar="The capital of France is Paris."), "the capital of France: Paris", True),
        (GoldenPrompt("p", similar="The capital of France is Paris."), "I do not know any capital", False),
        (GoldenPrompt("p", similar="Paris", min_likeness=1.0), "Paris!", False),
        (GoldenPrompt("p", schema=PERSON), '{"name": "Ada", "age": 36}', True),
        (GoldenPrompt("p", schema=PERSON), '{"name": "Ada", "age": "36"}', False),
        (GoldenPrompt("p", schema=PERSON), 'Sure: {"name": "Ada", "age": 36}', False),
        (GoldenPrompt("p", schema=PERSON, contains="Eve"), '{"name": "Ada", "age": 36}', False),
        (GoldenPrompt("p", schema={"$ref": "https://nowhere.invalid/s.json"}), "{}", False),
    ],
)
def test_an_answer_is_compared_with_what_was_expected(golden: GoldenPrompt, text: str, holds: bool) -> None:
    assert is_as_expected(golden, text) is holds


async def test_golden_prompts_go_unchanged_to_a_model_without_a_template(tmp_path: Path) -> None:
    pipeline = FakePipeline(lambda call: words("it is 4"))
    release = replace(manifest(1), checkpoint_dir=str(tmp_path))
    assert await runner(pipeline).failures(release, [FOUR]) == []
    (call,) = pipeline.calls
    assert (call.prompt, call.max_tokens, call.top_k, call.add_special_tokens) == ("2+2?", 8, 1, True)


async def test_golden_prompts_are_user_messages_where_the_model_has_a_template(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("<{{ messages[0].role }}>{{ messages[0].content }}<bot>")
    pipeline = FakePipeline(lambda call: words("4"))
    release = replace(manifest(1), checkpoint_dir=str(tmp_path))
    assert await runner(pipeline).failures(release, [FOUR]) == []
    assert pipeline.calls[0].prompt == "<user>2+2?<bot>"
    assert not pipeline.calls[0].add_special_tokens


async def test_the_wrong_answer_is_quoted_in_short(tmp_path: Path) -> None:
    pipeline = FakePipeline(lambda call: words("x" * 1000))
    (failure,) = await runner(pipeline).failures(replace(manifest(1), checkpoint_dir=str(tmp_path)), [FOUR])
    assert len(failure.came) == 200
    assert failure.sentence().startswith("the answer to '2+2?' should contain '4', but is 'xxx")


async def test_what_an_answer_lacks_of_its_likeness_or_its_schema_is_told(tmp_path: Path) -> None:
    release = replace(manifest(1), checkpoint_dir=str(tmp_path))
    asked = [GoldenPrompt("p", similar="Paris"), GoldenPrompt("p", schema=PERSON)]
    pipeline = FakePipeline(lambda call: words('{"name": 4}'))
    told = [each.sentence() for each in await runner(pipeline).failures(release, asked)]
    assert told[0] == """the answer to 'p' should be 80% like 'Paris', but is 12%, but is '{"name": 4}'"""
    assert told[1].startswith("the answer to 'p' should match its JSON schema ($")


async def test_errors_and_timeouts_are_failures(tmp_path: Path) -> None:
    release = replace(manifest(1), checkpoint_dir=str(tmp_path))
    broken = FakePipeline(lambda call: [InflightError(ErrorKind.INTERNAL, "at /srv/model.py")])
    (failure,) = await runner(broken).failures(release, [FOUR])
    assert failure.came == "at model.py"
    silent = FakePipeline(lambda call: [None])
    (failure,) = await runner(silent, 0.05).failures(release, [FOUR])
    assert failure.came == "no answer within 0.05 s"
    assert silent.generations[0].stopped


async def test_without_golden_prompts_the_model_is_not_asked() -> None:
    pipeline = FakePipeline()
    assert await runner(pipeline).failures(manifest(1), []) == []
    assert pipeline.calls == []
