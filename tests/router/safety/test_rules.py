from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from router.safety.check import Check, Verdict
from router.safety.guard import StreamGuard, load_safety
from router.safety.rules import Rule, RuleCheck, load_rules
from router.settings import SettingsError
from tests.router.safety.rule_files import check, terms

FILE = """
homoglyphs = true

[[rules]]
name = "project names"
terms = ["blue heron", "red fox"]

[[rules]]
name = "serial numbers"
pattern = '[a-z]{2}-\\d{4}'
max_chars = 7
applies_to = "answer"
"""


class OnlyShouting:
    """A check of somebody's own."""

    def judge(self, prompt: str) -> str | None:
        return "shouting" if prompt.isupper() else None

    def reader(self) -> OnlyShouting:
        return self

    def read(self, held: str, is_last: bool) -> Verdict:
        return Verdict(len(held))


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "rules.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_rules_file_is_read(tmp_path: Path) -> None:
    judge = RuleCheck(load_rules(written(tmp_path, FILE)))
    assert judge.judge("where is the Вlue heron?") == "project names"
    assert judge.judge("blue herons") is None
    assert judge.judge("ab-1234") is None
    assert judge.reader().read("it is ab-1234", True) == Verdict(6, "serial numbers")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "missing required field `rules`"),
        ("rules = []", "length >= 1"),
        ("[[rules]]\nname = 'x'", "x: expected terms, a pattern or both"),
        ("[[rules]]\nname = 'x'\nterm = ['a']", "unknown field `term`"),
        ("[[rules]]\nname = '<b>'\nterms = ['a']", "matching regex"),
        ("[[rules]]\nname = 'x'\npattern = 'a'", "x: pattern and max_chars"),
        ("[[rules]]\nname = 'x'\npattern = 'a'\nmax_chars = 9999", "<= 512"),
        ("rules = 'x", "rules.toml"),
    ],
)
def test_an_unusable_rules_file_is_refused_by_name(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=message):
        load_rules(written(tmp_path, text))


def test_a_missing_rules_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"safety_rules: cannot read .*nothing\.toml"):
        load_rules(tmp_path / "nothing.toml")


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (r"\bcat", "assertions and references"),
        (r"(a)\1", "assertions and references"),
        ("^cat", "assertions are not allowed"),
        ("cat$", "assertions are not allowed"),
        ("(?=cat)", r"only \(\?: \) may be used"),
        ("(?i)cat", r"only \(\?: \) may be used"),
        ("(?:cat){e<=1}", "braces hold numbers"),
        ("c(at", "is invalid"),
        ("café", "folded text contains 'e' instead"),
        ("(cat)?", "matches the empty text"),
    ],
)
def test_a_pattern_that_cannot_be_matched_in_a_stream_is_refused(pattern: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        check(Rule("pets", pattern=pattern, max_chars=20))


@pytest.mark.parametrize(
    "pattern", [r"[$^]cat", r"c[]a]t", r"c\$a{2,3}t?x", r"(?:cat|dog)s{0,1}", r"[^\]]x{3}"]
)
def test_patterns_that_can_be_matched_in_a_stream_are_accepted(pattern: str) -> None:
    check(Rule("pets", pattern=pattern, max_chars=20))


def test_an_invisible_term_is_refused() -> None:
    with pytest.raises(SettingsError, match="a term has no visible character"):
        check(terms("\u200b"))


def test_of_two_rules_with_one_term_the_stricter_counts() -> None:
    judge = check(terms("cat"), terms("cat", whole_words=True, name="whole"))
    assert judge.judge("concatenation")
    judge = check(terms("cat", whole_words=True, name="whole"), terms("cat"))
    assert judge.judge("concatenation")


def test_a_pattern_may_ask_for_whole_words() -> None:
    judge = check(Rule("pets", pattern="cats?", max_chars=4, whole_words=True))
    assert judge.judge("Cats") == "pets"
    assert judge.judge("the cat.") == "pets"
    assert judge.judge("concat catsup") is None
    reader = judge.reader()
    assert reader.read("a cat", False) == Verdict(2)
    assert reader.read("catsu", False) == Verdict(5)
    assert reader.read("p cats", True) == Verdict(2, "pets")


def test_a_pattern_holds_no_more_than_its_longest_match() -> None:
    reader = check(Rule("long", pattern="a.*b", max_chars=5, whole_words=False)).reader()
    assert reader.read("a1234567", False).clear_chars == 8
    assert reader.read("a12", False).clear_chars == 0


def test_a_pattern_that_backtracks_endlessly_times_out() -> None:
    judge = check(Rule("endless", pattern="(?:a|a)+c", max_chars=500, whole_words=False))
    with pytest.raises(TimeoutError):
        judge.judge("a" * 60 + "bc")


async def test_the_check_named_in_the_settings_is_built(tmp_path: Path) -> None:
    rules = str(written(tmp_path, FILE))
    own = f"{__name__}:OnlyShouting"
    assert load_safety("", "", [], ["m"]) is None
    safety = load_safety(rules, own, ["m"], ["m", "n"])
    assert safety is not None
    assert safety.applies_to("m")
    assert not safety.applies_to("n")
    alone = load_safety("", own, [], ["m"])
    assert alone is not None
    guard = alone.guard("m")
    assert guard is not None
    assert guard.feed("any text") == "any text"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("nonsense", "expected package.module:factory"),
        ("no.such.module:x", "ModuleNotFoundError"),
        (f"{__name__}:nothing", "AttributeError"),
        ("builtins:dict", "needs a judge and a reader"),
    ],
)
def test_a_check_that_cannot_be_built_stops_the_start(path: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        load_safety("", path, [], ["m"])


def test_a_model_that_is_not_served_is_refused() -> None:
    with pytest.raises(SettingsError, match="safety_models: x: allowed are m"):
        load_safety("", "builtins:dict", ["x"], ["m"])


def test_the_examples_of_the_documentation_can_be_used(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "safety.md").read_text(encoding="utf-8")
    rules = page.split("```toml\n", 1)[1].split("```", 1)[0]
    judge = RuleCheck(load_rules(written(tmp_path, rules)))
    assert judge.judge("what is operation STRASSENBAHN?") == "project names"
    made: dict[str, Any] = {}
    exec(page.split("```python\n", 1)[1].split("```", 1)[0], made)
    own: Check = made["NoShouting"]()
    assert own.judge("WHY?") == "shouting"
    guard = StreamGuard(own.reader)
    assert [guard.feed("All is"), guard.feed(" well. N"), guard.feed("O. STOP")] == ["", "All is well.", ""]
    assert guard.tripped
