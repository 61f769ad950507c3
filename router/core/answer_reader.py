"""Reads an answer as it streams: takes out the thoughts at its beginning, and the tool calls in the rest.

What cannot be part of either leaves at once, and nothing depends on how the text was cut into chunks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec

from router.core.answer_text import tail_length
from router.core.call_formats import HERMES, CallFormat, WrittenCall
from router.core.messages import ToolCall
from router.core.origin import random_hex
from router.core.xml_calls import Schemas

THINK, THINK_END = "<think>", "</think>"
# The one argument of the function that a custom tool is to a model.
CUSTOM_INPUT = "input"


class ThoughtReader:
    """Splits an answer that begins with <think>, or already within it, from what is said aloud.

    Blank lines next to the tags belong to neither.
    """

    def __init__(self, is_thinking: bool = False) -> None:
        self.is_thinking = is_thinking
        self._is_begun = is_thinking
        self._strips = is_thinking  # blanks before the next text
        self._held = ""

    @property
    def held(self) -> int:
        return len(self._held)

    def feed(self, chunk: str) -> tuple[str, str]:
        """What was thought and what was said in it, as far as it is certain."""
        text, self._held = self._held + chunk, ""
        if not self._is_begun:
            begun = text.lstrip()
            if THINK.startswith(begun) and begun != THINK:  # the beginning of the tag, or nothing yet
                self._held = text
                return "", ""
            self._is_begun = True
            if not begun.startswith(THINK):
                return "", text
            self.is_thinking = self._strips = True
            text = begun[len(THINK) :]
        thought = ""
        if self.is_thinking:
            thought, text = self._thought(text)
        return thought, self._without_blanks(text) if text else ""

    def _thought(self, text: str) -> tuple[str, str]:
        text = self._without_blanks(text)
        thought, mark, said = text.partition(THINK_END)
        if mark:
            self.is_thinking, self._strips = False, True
            return thought.rstrip(), said
        keep = tail_length(text, (THINK_END,))
        certain = text[: len(text) - keep].rstrip()
        self._held = text[len(certain) :]
        return certain, ""

    def _without_blanks(self, text: str) -> str:
        if self._strips:
            text = text.lstrip()
            self._strips = not text
        return text

    def flush(self) -> tuple[str, str]:
        """What is left when no more text can come."""
        held, self._held = self._held, ""
        return (held.rstrip(), "") if self.is_thinking else ("", held)


class CallList:
    """The calls of one answer: those of known tools, no more than `at_most`.

    Calls of `custom` tools have a text in place of arguments. `schemas` are of the arguments, by name.
    """

    def __init__(
        self,
        names: Collection[str],
        at_most: int | None = None,
        custom: Collection[str] = (),
        schemas: Schemas | None = None,
    ) -> None:
        self.found: list[ToolCall] = []
        self.names = frozenset(names)
        self.schemas = schemas or {}
        self._custom = frozenset(custom)
        self._at_most = at_most

    def add(self, written: Sequence[WrittenCall]) -> bool:
        """False where they are none, or none of these tools; raises ValueError."""
        calls = [self._made(each.name, each.arguments_text) for each in written]
        if not calls or not all(call.name in self.names for call in calls):
            return False
        room = len(calls) if self._at_most is None else max(0, self._at_most - len(self.found))
        self.found += calls[:room]
        return True

    def drop(self, first: int) -> None:
        """Takes back the calls from this one on, before anybody was told of them."""
        del self.found[first:]

    def _made(self, name: str, arguments: str) -> ToolCall:
        is_custom = name in self._custom
        return new_call(name, _custom_input(arguments) if is_custom else arguments, is_custom)


class ToolReader:
    """Takes calls out of text.

    With `is_forced` the whole answer is one call, and nothing of it is text. What else looks like a call and
    is none, or names an unknown tool, is text.
    """

    def __init__(self, calls: CallList, is_forced: bool = False, form: CallFormat = HERMES) -> None:
        self._calls = calls
        self._form = HERMES if is_forced else form
        self._is_forced = is_forced
        self.held = 0  # how many of the last characters may still be part of a call
        self._held: list[str] = []
        self._is_begun = not self._form.bare
        self._is_open = False
        self._to_end = is_forced  # all that still comes is calls
        self._end = ""  # the last characters, in which a closing mark may have begun

    @property
    def calls(self) -> Sequence[ToolCall]:
        return self._calls.found

    def feed(self, chunk: str) -> str:
        """Returns the text that may leave now; whole calls are in `calls` from then on."""
        self._held.append(chunk)
        self.held += len(chunk)
        closing = self._form.closing
        self._end = self._end[1 - len(closing) :] + chunk if closing else ""
        # A long call is not looked through again with each of its chunks.
        if self._to_end or (self._is_open and closing not in self._end):
            return ""
        text, out = "".join(self._held), []
        if not self._is_begun and not self._begins(text):
            return ""
        at = 0  # what is before has been read: a whole answer may be one chunk, with thousands of calls
        while found := self._form.opening.search(text, at):
            start = found.start()
            out.append(text[at:start])
            end = text.find(closing, start) if closing else -1
            if end < 0:
                self._hold(text[start:], is_open=True)
                self._to_end = not closing
                return "".join(out)
            at = end + len(closing)
            out.append(self._take(text[start:at]))
        text = text[at:]
        keep = tail_length(text, self._form.openings)
        out.append(text[: len(text) - keep])
        self._hold(text[len(text) - keep :], is_open=False)
        return "".join(out)

    def _begins(self, text: str) -> bool:
        """Whether the answer, of which this is all so far, begins as a text."""
        begun = text.lstrip()
        self._is_begun = bool(begun)
        self._to_end = begun.startswith(self._form.bare) and self._is_begun
        return self._is_begun and not self._to_end

    def _hold(self, text: str, *, is_open: bool) -> None:
        self._held, self.held, self._is_open = [text], len(text), is_open

    def flush(self) -> str:
        """What is left when no more text can come."""
        held, is_call = "".join(self._held), self._to_end or self._is_open
        self._hold("", is_open=False)
        # A call may lack its closing mark where the model ended right behind the JSON.
        left = self._take(held) if is_call else held
        return "" if self._is_forced else left

    def drop(self, first: int) -> None:
        self._calls.drop(first)

    def _take(self, written: str) -> str:
        """Adds calls; returns them as text where they are none."""
        try:
            return "" if self._calls.add(self._form.read(written, self._calls.schemas)) else written
        except (ValueError, RecursionError):
            return written


class WholeCall:
    """Takes a whole answer for what a custom tool is called with: its grammar allows nothing else."""

    def __init__(self, name: str) -> None:
        self.calls: list[ToolCall] = []
        self.held = 0
        self._name = name
        self._pieces: list[str] = []

    def feed(self, chunk: str) -> str:
        self._pieces.append(chunk)
        self.held += len(chunk)
        return ""

    def flush(self) -> str:
        self.calls.append(new_call(self._name, "".join(self._pieces), is_custom=True))
        self.held = 0
        return ""

    def drop(self, first: int) -> None:
        del self.calls[first:]


def new_call(name: str, arguments: str, is_custom: bool = False) -> ToolCall:
    return ToolCall(f"call_{random_hex(12)}", name, arguments, is_custom)


def _custom_input(arguments: str) -> str:
    try:
        given = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return arguments
    text = given.get(CUSTOM_INPUT) if isinstance(given, dict) else None
    return text if isinstance(text, str) else arguments


class AnswerReader:
    """Thoughts first, then calls; either may be absent."""

    def __init__(self, thoughts: ThoughtReader | None, tools: ToolReader | WholeCall | None) -> None:
        self._thoughts = thoughts
        self._tools = tools
        self._new_thoughts: list[str] = []

    @property
    def calls(self) -> Sequence[ToolCall]:
        return () if self._tools is None else self._tools.calls

    @property
    def held(self) -> int:
        """How many characters are held back."""
        thoughts = 0 if self._thoughts is None else self._thoughts.held
        return thoughts + (0 if self._tools is None else self._tools.held)

    @property
    def is_thinking(self) -> bool:
        return self._thoughts is not None and self._thoughts.is_thinking

    def feed(self, chunk: str) -> str:
        if self._thoughts is not None:
            thought, chunk = self._thoughts.feed(chunk)
            self._new_thoughts.append(thought)
        return chunk if self._tools is None or not chunk else self._tools.feed(chunk)

    def flush(self) -> str:
        said = ""
        if self._thoughts is not None:
            thought, said = self._thoughts.flush()
            self._new_thoughts.append(thought)
        return said if self._tools is None else self._tools.feed(said) + self._tools.flush()

    def take_thoughts(self) -> str:
        """Those that were not taken yet."""
        taken, self._new_thoughts = "".join(self._new_thoughts), []
        return taken

    def drop(self, first: int) -> None:
        if self._tools is not None:
            self._tools.drop(first)
