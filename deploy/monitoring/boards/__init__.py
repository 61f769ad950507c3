"""The dashboards, in the order in which they are looked at."""

from deploy.monitoring.boards import engine, models, overview, releases, tenants

BOARDS = (overview.BOARD, models.BOARD, tenants.BOARD, releases.BOARD, engine.BOARD)
