"""The operator's check of prompts and answers, for requests that come as tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

from python_backend.wire import codec
from python_backend.wire.errors import ErrorKind, InflightError
from router.kserve.answers import Output

if TYPE_CHECKING:
    from router.kserve.tensors import Values
    from router.safety.guard import Safety

FILTERED = "content_filter"
_TEXT, _FINISH = "text_output", "finish_reason"
_PROMPTS = ("text_input", "decoder_text_input")
_LOGITS = ("return_context_logits", "return_generation_logits")


async def check_prompts(safety: Safety, model: str, values: Values, sequences: int) -> None:
    """Refuses forbidden prompts, and whatever would tell of an answer past the check."""
    if not safety.applies_to(model):
        return
    for flag in _LOGITS:
        if flag in values and any(values[flag].elements):
            raise _unreadable(flag, "logits tell of tokens that the check has not let pass")
    if sequences > 1:
        raise _unreadable("num_return_sequences", "one row and one sequence a request")
    prompts = [values[name].elements for name in _PROMPTS if name in values]
    await safety.admit(model, [text.decode() for texts in prompts for text in texts])


def _unreadable(name: str, why: str) -> InflightError:
    message = f"input '{name}': not with this model, whose prompts and answers are checked: {why}"
    return InflightError(ErrorKind.UNSUPPORTED, message, name)


class GuardedText:
    """The text of one answer, let out as far as the check has cleared it."""

    def __init__(self, safety: Safety | None, model: str) -> None:
        self._guard = None if safety is None else safety.guard(model)

    @property
    def tripped(self) -> bool:
        return self._guard is not None and self._guard.tripped

    def let(self, outputs: dict[str, Output], final: bool) -> dict[str, Output]:
        """The outputs with the text that may leave; a rule that ends the answer takes its reason's place."""
        guard = self._guard
        if guard is None:
            return outputs
        given = "".join(outputs[_TEXT].elements()) if _TEXT in outputs else ""
        text = guard.feed(given)
        if not guard.tripped and (final or _FINISH in outputs):
            text += guard.flush()
        let = dict(outputs)
        if text or _TEXT in outputs:
            let[_TEXT] = _text(_TEXT, text)
        if guard.tripped:
            let[_FINISH] = _text(_FINISH, FILTERED)
        return let


def _text(name: str, text: str) -> Output:
    return Output(name, "BYTES", (1,), codec.encode("BYTES", [text]))
