"""Whose each request of a trace is, where there are fewer keys than tenants in it, or none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from loadtest.tenants import Tenant, TenantMix
from loadtest.traces import Trace, TracedRequest


def with_tenants(trace: Trace, tenants: Sequence[Tenant]) -> Trace:
    """Who is among `tenants` stays who it is; the others are divided over them by their weights.

    A tenant of the trace is always the same of them; requests of nobody go to each in turn. Requests without
    a tier get that of their tenant.
    """
    known = {tenant.name: tenant for tenant in tenants}
    mix = TenantMix(tenants)

    def tenant_of(request: TracedRequest) -> Tenant:
        if not request.tenant:
            return mix.next()
        if request.tenant not in known:
            known[request.tenant] = mix.next()
        return known[request.tenant]

    def assigned(request: TracedRequest) -> TracedRequest:
        tenant = tenant_of(request)
        return replace(request, tenant=tenant.name, tier=request.tier or tenant.tier)

    return replace(trace, requests=tuple(assigned(each) for each in trace.requests))
