"""Which steps a sequence was part of, for who wants to see them: kept only where a request asks."""

from __future__ import annotations

# Of one sequence: each becomes a span, which somebody has to send and to look at.
MOST_ROWS = 128
# A step joins the row before it unless it took so many times as long as the row's steps, or they as it did.
_ALIKE = 3


class StepNotes:
    """Rows of begin_ns, end_ns, tokens of the sequence, sequences of the step, tokens of the step, steps.

    Prompts have a row for each step. Those that follow with one token each, in the same company and about as
    long, are one row: its times are from the begin of the first to the end of the last, its tokens of the
    sequence are a sum, the rest is what each of them had. So a row ends where somebody comes or leaves, or
    where there was a wait. A pause is a row of its own, with times and nothing else. When the rows are used
    up, every further step joins the last one, in any company.
    """

    __slots__ = ("_may_go_on", "rows")

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self._may_go_on = False  # the last row, with steps alike

    def add(
        self, begin_ns: int, end_ns: int, tokens: int, sequences: int, step_tokens: int, is_prompt: bool
    ) -> None:
        joins = self._may_go_on and not is_prompt and _is_alike(self.rows[-1], end_ns, sequences, step_tokens)
        self._may_go_on = not is_prompt
        most = MOST_ROWS - 1 if is_prompt else MOST_ROWS  # a prompt leaves one for the answer
        if joins or len(self.rows) >= most:
            last = self.rows[-1]
            last[1] = end_ns
            last[2] += tokens
            last[5] += 1
        else:
            self.rows.append([begin_ns, end_ns, tokens, sequences, step_tokens, 1])

    def add_token(self) -> None:
        """The last step gave one more."""
        self.rows[-1][2] += 1

    def add_pause(self, begin_ns: int, end_ns: int) -> None:
        """It was in no step meanwhile."""
        self._may_go_on = False
        if len(self.rows) < MOST_ROWS - 1:
            self.rows.append([begin_ns, end_ns, 0, 0, 0, 0])


def _is_alike(row: list[int], end_ns: int, sequences: int, step_tokens: int) -> bool:
    begin_ns, before_ns, _, row_sequences, row_step_tokens, steps = row
    if (sequences, step_tokens) != (row_sequences, row_step_tokens):
        return False
    usual_ns, took_ns = (before_ns - begin_ns) / steps, end_ns - before_ns
    return usual_ns <= _ALIKE * took_ns and took_ns <= _ALIKE * usual_ns
