"""How Prometheus finds the parts: for docker-compose, whose service names are the addresses."""

from __future__ import annotations

ROUTER, TRITON = "inflight-router", "inflight-triton"

CONFIG = f"""\
# Written by python -m deploy.monitoring. Addresses are those of docker-compose.yml.
global:
  scrape_interval: 15s
  evaluation_interval: 15s

rule_files:
  - rules.yml

scrape_configs:
  - job_name: {ROUTER}
    # On an address that others reach /metrics needs a key with the scope admin:read.
    authorization:
      type: Bearer
      credentials_file: /run/secrets/metrics_key
    static_configs:
      - targets: ["router:8080"]

  - job_name: {TRITON}
    static_configs:
      - targets: ["triton:8002"]

  - job_name: prometheus
    static_configs:
      - targets: ["127.0.0.1:9090"]

# Alerts are shown by Prometheus and Grafana. To be told of them, run an Alertmanager and name it here:
# alerting:
#   alertmanagers:
#     - static_configs:
#         - targets: ["alertmanager:9093"]
"""
