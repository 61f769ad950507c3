"""How the routers themselves are: the last section of the overview."""

from __future__ import annotations

from deploy.monitoring.board import Panel, Query, Section
from deploy.monitoring.prometheus import ROUTER

_JOB = f'{{job="{ROUTER}"}}'

ROUTERS = Section(
    "How are the routers?",
    (
        Panel(
            "CPU of routers",
            "Cores that each router uses; it runs all requests on one, so it is saturated at 1.",
            "short",
            (Query(f"rate(process_cpu_seconds_total{_JOB}[$__rate_interval])", "{{instance}}"),),
            width=6,
        ),
        Panel(
            "Stalls of routers",
            "p99 of the delays of each router's event loop; some milliseconds are usual. All streams pause "
            "meanwhile.",
            "s",
            (
                Query(
                    "histogram_quantile(0.99, sum by (le, instance) ("
                    "rate(inflight_event_loop_stall_seconds_bucket[$__rate_interval])))",
                    "{{instance}}",
                ),
            ),
            width=6,
        ),
        Panel(
            "Memory of routers",
            "Resident memory of each router.",
            "bytes",
            (Query(f"process_resident_memory_bytes{_JOB}", "{{instance}}"),),
            width=4,
        ),
        Panel(
            "Usage not yet in the store",
            "On the disk of each router; grows while the store is unreachable.",
            "bytes",
            (Query("inflight_usage_spool_bytes", "{{instance}}"),),
            width=4,
        ),
        Panel(
            "Versions",
            "Routers by the version that they run.",
            "short",
            (Query("count by (version) (inflight_build_info)", "{{version}}"),),
            kind="number",
            width=4,
        ),
    ),
)
