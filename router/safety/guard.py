"""Applies a check to prompts before they are admitted, and to answers before they leave."""

from __future__ import annotations

import importlib
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import cast

from python_backend.wire.errors import ErrorKind, InflightError
from router.core.fair_pool import FairPool
from router.core.generation import GenerationCall
from router.safety.check import AllChecks, Check, Reader
from router.settings import SettingsError

log = logging.getLogger(__name__)

# A longer prompt is judged in a thread, in turns by tenant, so that the streams of others go on meanwhile.
_LONG_PROMPT_CHARS = 16 << 10
_WAITING_EACH = 64


class StreamGuard:
    """One answer on its way: holds back what the reader has not cleared. Calls in it are judged whole."""

    def __init__(self, new_reader: Callable[[], Reader]) -> None:
        self._new_reader = new_reader
        self._reader = new_reader()
        self._held = ""
        self.tripped = False

    @property
    def held_chars(self) -> int:
        """How many of the characters given last have not left."""
        return len(self._held)

    def feed(self, text: str) -> str:
        """Takes what comes next; returns what may leave. Sets `tripped` when nothing more may."""
        return self._read(text, is_last=False) if text else ""

    def flush(self) -> str:
        """The rest, once no more text can come; it may trip here too."""
        return self._read("", is_last=True) if self._held else ""

    def admits(self, whole: str) -> bool:
        """Whether something that leaves beside the text may; where it may not, nothing more may."""
        if not self.tripped:
            try:
                _, rule = self._new_reader().read(whole, True)
            except Exception as error:
                raise self._failed(error) from None
            if rule is not None:
                self._trip(rule)
        return not self.tripped

    def _read(self, text: str, is_last: bool) -> str:
        if self.tripped:
            return ""
        held = self._held + text
        try:
            clear_chars, rule = self._reader.read(held, is_last)
            _check_verdict(clear_chars, len(held), is_last and rule is None)
        except Exception as error:
            raise self._failed(error) from None
        self._held = held[clear_chars:]
        if rule is not None:
            self._trip(rule)
        return held[:clear_chars]

    def _trip(self, rule: str) -> None:
        self.tripped, self._held = True, ""
        log.info("the rule %s ended an answer", rule)

    def _failed(self, error: Exception) -> InflightError:
        self.tripped, self._held = True, ""
        return _failed(error)


class Safety:
    """The check of this router, and the models whose prompts and answers it reads."""

    def __init__(self, check: Check, models: Collection[str] = ()) -> None:
        self._check = check
        self._models = frozenset(models)
        self.pool = FairPool("texts to be checked", 1, _WAITING_EACH)

    def applies_to(self, model: str) -> bool:
        return not self._models or model in self._models

    async def admit_calls(self, model: str, calls: Sequence[GenerationCall], tenant: str = "") -> None:
        """The same for what is to be generated, and nothing that would tell of text without being text."""
        if not self.applies_to(model):
            return
        for call in calls:
            if call.prompt_ids is not None:
                raise _unreadable("prompt", "send the prompt as text, not as token ids")
            if call.images:
                raise _unreadable("messages", "send text without images")
            if call.top_log_probs is not None:
                raise _unreadable("logprobs", "they reveal tokens that the check has not passed")
            if call.returns_token_ids:
                raise _unreadable("return_token_ids", "they reveal tokens that the check has not passed")
        await self.admit(model, (call.prompt for call in calls if not call.shares_prompt), tenant)

    async def admit(self, model: str, prompts: Iterable[str], tenant: str = "") -> None:
        """Raises CONTENT_FILTER, with the name of the rule and none of the text."""
        if not self.applies_to(model):
            return
        for prompt in prompts:
            if len(prompt) > _LONG_PROMPT_CHARS:
                rule = await self.pool.run(tenant, self._judge, prompt)
            else:
                rule = self._judge(prompt)
            if rule is not None:
                message = f"the prompt is refused by the rule '{rule}'"
                raise InflightError(ErrorKind.CONTENT_FILTER, message)

    @property
    def rules(self) -> tuple[str, ...]:
        """The names of those that are known beforehand."""
        return tuple(getattr(self._check, "rules", ()))

    def broken_rules(self, text: str) -> set[str]:
        """Those that forbid a text as a prompt, and as an answer; it may take its time."""
        try:
            found = (self._check.judge(text), self._check.reader().read(text, True)[1])
        except Exception as error:
            raise _failed(error) from None
        return {rule for rule in found if rule is not None}

    def guard(self, model: str) -> StreamGuard | None:
        if not self.applies_to(model):
            return None
        try:
            return StreamGuard(self._check.reader)
        except Exception as error:
            raise _failed(error) from None

    def _judge(self, prompt: str) -> str | None:
        try:
            return self._check.judge(prompt)
        except Exception as error:
            raise _failed(error) from None


def _unreadable(param: str, why: str) -> InflightError:
    message = f"{param}: not allowed with this model, whose prompts and answers are checked: {why}"
    return InflightError(ErrorKind.UNSUPPORTED, message, param)


def _check_verdict(clear_chars: int, held_chars: int, is_end: bool) -> None:
    if not (held_chars if is_end else 0) <= clear_chars <= held_chars:
        raise ValueError("a reader cleared more or fewer characters than it was given")


def _failed(error: Exception) -> InflightError:
    """Nothing passes unchecked. The words of the error may quote the text, so they are not logged."""
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    where = "" if place is None else f" at {place.tb_frame.f_code.co_filename}:{place.tb_lineno}"
    log.error("the safety check failed: %s%s", type(error).__name__, where)
    return InflightError(ErrorKind.INTERNAL, "the safety check failed")


def load_safety(rules: str, check: str, models: Collection[str], known: Collection[str]) -> Safety | None:
    """None where nothing is to be checked; `known` are the models of this router."""
    if unknown := sorted(set(models) - set(known)):
        raise SettingsError(f"safety_models: {', '.join(unknown)}: allowed are {', '.join(sorted(known))}")
    checks: list[Check] = []
    if rules:
        # Here, so that a router without rules needs neither automaton nor patterns.
        from router.safety.rules import RuleCheck, load_rules

        checks.append(RuleCheck(load_rules(Path(rules))))
    if check:
        checks.append(_from_import_path(check))
    if not checks:
        return None
    return Safety(checks[0] if len(checks) == 1 else AllChecks(checks), models)


def _from_import_path(path: str) -> Check:
    module, colon, factory = path.partition(":")
    if not (module and colon and factory):
        raise SettingsError(f"safety_check = {path!r}: expected package.module:factory")
    try:
        made = getattr(importlib.import_module(module), factory)()
    except Exception as error:
        raise SettingsError(f"safety_check = {path!r}: {type(error).__name__}: {error}") from error
    if not callable(getattr(made, "judge", None)) or not callable(getattr(made, "reader", None)):
        raise SettingsError(f"safety_check = {path!r}: the object it returns needs a judge and a reader")
    return cast("Check", made)
