"""`inflight doctor` and `inflight top` at a router with keys, which tells strangers little."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from launcher.commands.doctor.deployment_facts import ask_deployment
from launcher.commands.top.metrics_pages import PageUnreadable, RouterPage
from router.core.tenant import Scope
from tests.router.kserve.running import running_kserve
from tests.router.running import EMBEDDER, MODEL


async def test_doctor_learns_by_its_key_which_models_are_ready_and_what_the_metrics_say() -> None:
    async with running_kserve() as kserve:
        tenant = await kserve.router.new_tenant()
        scopes = frozenset({Scope.INFERENCE, Scope.EMBEDDINGS, Scope.METRICS_READ})
        key = await kserve.router.new_key(tenant, scopes)
        facts = await asyncio.to_thread(ask_deployment, f"http://{kserve.http_url}", key)
        assert facts.is_live
        assert facts.is_ready
        assert facts.models == {MODEL: True, EMBEDDER: True}
        assert {each.model for each in facts.answers} == {MODEL, EMBEDDER}
        assert facts.metrics is not None


async def test_without_a_key_doctor_and_top_learn_that_it_is_ready_and_which_key_they_need() -> None:
    async with running_kserve() as kserve:
        await kserve.router.new_key(await kserve.router.new_tenant())
        url = f"http://{kserve.http_url}"
        facts = await asyncio.to_thread(ask_deployment, url, None)
        assert facts.is_ready
        assert facts.models == {}
        assert "metrics:read" in facts.why_no_metrics
        with closing(RouterPage(url)) as page:
            assert await asyncio.to_thread(page.is_ready)
            with pytest.raises(PageUnreadable, match="metrics:read"):
                await asyncio.to_thread(page.metrics)
