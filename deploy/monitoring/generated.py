"""Every file that is made from code, and what is to be in it."""

from __future__ import annotations

from pathlib import Path

from deploy.monitoring import alerts, grafana, prometheus, recordings, rules
from deploy.monitoring.boards import BOARDS

DEPLOY = Path(__file__).parents[1]
_HEADER = "# Written by python -m deploy.monitoring from deploy/monitoring: change it there.\n"


def files() -> dict[Path, str]:
    return {
        DEPLOY / "prometheus/prometheus.yml": prometheus.CONFIG,
        DEPLOY / "prometheus/rules.yml": rules.rendered((*recordings.GROUPS, *alerts.GROUPS), _HEADER),
        DEPLOY / "grafana/provisioning/datasources/inflight.yml": grafana.DATASOURCES,
        DEPLOY / "grafana/provisioning/dashboards/inflight.yml": grafana.PROVIDERS,
        **{DEPLOY / f"grafana/dashboards/{board.uid}.json": grafana.rendered(board) for board in BOARDS},
    }
