from __future__ import annotations

import pytest

from router.core.refusals import is_refusal


@pytest.mark.parametrize(
    "opening",
    [
        "I'm sorry, but I can't help with that.",
        "I\u2019m sorry, I can\u2019t assist with that request.",
        "Sorry, I cannot do this",
        "Unfortunately, I am unable to",
        "  I cannot provide instructions",
        "As an AI language model, I do not",
        "I apologize, but I won't write that.",
        "**I can't** do that.",
    ],
)
def test_openings_that_decline(opening: str) -> None:
    assert is_refusal(opening)


@pytest.mark.parametrize(
    "opening",
    [
        "",
        "Sure, here is the code.",
        "I'm sorry to hear that you are ill. Rest, and drink enough.",
        "Sorry about the confusion: the answer is 4.",
        "The word cannot is written as one word.",
        "You said: I can't sleep. Try this.",
    ],
)
def test_openings_that_do_not(opening: str) -> None:
    assert not is_refusal(opening)
