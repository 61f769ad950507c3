"""What makes the GPU's engine quick enough to be interpreted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session", autouse=True)
def few_programs(request: pytest.FixtureRequest) -> Iterator[None]:
    """The interpreter runs programs one after the other, so that attention need not be cut for many of them.

    What attention in dozens of parts gives is tested without an engine.
    """
    if request.config.getoption("--device") == "cuda":
        yield
        return
    from python_backend.engine.cuda import decoder

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decoder, "decode_splits", lambda rows, kv_heads: 2)
        yield


@pytest.fixture(scope="session", autouse=True)
def language_made_interpretable_once(request: pytest.FixtureRequest) -> Iterator[None]:
    """Triton-lang's interpreter exchanges the whole language at each call of a function within a kernel.

    Once a kernel is enough, and takes half the time.
    """
    from triton import language
    from triton.runtime import interpreter

    if request.config.getoption("--device") == "cuda" or not hasattr(interpreter, "_LangPatchScope"):
        yield  # nothing is interpreted, or by an older triton-lang
        return
    exchange, exchanged = interpreter._patch_lang, set[str]()

    def exchange_once(function: Any) -> Any:
        modules = {
            each.__name__
            for each in function.__globals__.values()
            if each is language or each is language.core
        }
        if modules <= exchanged:
            return interpreter._LangPatchScope()
        outermost, scope = not exchanged, exchange(function)
        exchanged.update(modules)
        if outermost:
            restore = scope.restore

            def restore_all() -> None:
                restore()
                exchanged.clear()

            scope.restore = restore_all
        return scope

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang", exchange_once)
        yield
