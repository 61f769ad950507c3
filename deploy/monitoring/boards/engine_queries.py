"""What of a Triton server's models is chosen, for the panels of the engine's dashboard."""

from __future__ import annotations

OF_ENGINE = 'instance=~"$triton",model=~"$triton_model"'
NAME = "{{model}} {{instance}}"


def each(metric: str, labels: str = "") -> str:
    return f"{metric}{{{labels + ',' if labels else ''}{OF_ENGINE}}}"


def rate_each(metric: str, labels: str = "") -> str:
    return f"sum by (model, instance) (rate({each(metric, labels)}[$__rate_interval]))"
