"""Refuses prompts that are far too long for their model, before Triton tokenizes them at others' expense."""

from __future__ import annotations

from typing import TYPE_CHECKING

from router.request.errors import too_long

if TYPE_CHECKING:
    from collections.abc import Sequence

    from router.request.token_counting import Tokenizers
    from router.routing.models import ServedModel

# Characters for each token of a model's context, beyond which a prompt is counted: most texts have fewer.
_COUNTED_FROM = 8
# Counting in parts may give a few too many.
_SLACK_TOKENS = 64


class PromptLengths:
    """Counts by the tenant's share, and no further than the context goes; the rest is left to the engine."""

    def __init__(self, tokenizers: Tokenizers) -> None:
        self._tokenizers = tokenizers

    async def check(self, served: ServedModel, prompts: Sequence[str], tenant: str) -> None:
        context = served.context_tokens
        for prompt in prompts:
            if len(prompt) <= _COUNTED_FROM * context:
                continue
            if await self._tokenizers.exceeds(tenant, served.name, prompt, context + _SLACK_TOKENS):
                raise too_long(context, context + _SLACK_TOKENS, is_least=True)
