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
    # Where there are keys /metrics needs one with the scope metrics:read.
    authorization:
      type: Bearer
      credentials_file: /run/secrets/metrics_key
    dns_sd_configs: # each of them, where there are several
      - {{names: [router], type: A, port: 8080, refresh_interval: 15s}}

  - job_name: {TRITON}
    dns_sd_configs:
      - {{names: [triton], type: A, port: 8002, refresh_interval: 15s}}

  - job_name: prometheus
    basic_auth: {{username: inflight, password_file: /run/secrets/prometheus_password}}
    static_configs:
      - targets: ["127.0.0.1:9090"]

# Alerts are shown by Prometheus and Grafana. To be told of them, run an Alertmanager and name it here. Alerts
# name tenants: start it with --web.config.file=/run/secrets/prometheus_web, as Prometheus is.
# alerting:
#   alertmanagers:
#     - basic_auth: {{username: inflight, password_file: /run/secrets/prometheus_password}}
#       static_configs:
#         - targets: ["alertmanager:9093"]
"""
