"""What makes the GPU's engine quick enough to be interpreted."""

from __future__ import annotations

from collections.abc import Iterator

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
