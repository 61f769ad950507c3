from __future__ import annotations

from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest

from router.control.releases.proof import Proof
from router.routing.models import Lineup, Registry, ServedModel
from router.routing.split import ModelSplit
from router.telemetry.collectors import ReleaseMetrics
from router.telemetry.metrics import Metrics
from tests.fakes.pipeline import FakePipeline

SPLIT = ModelSplit("smol", ((2, 0.25), (1, 0.75)), "salt", rollout_id=7, step=1)


def lineup(split: ModelSplit, *versions: int) -> Lineup:
    return Lineup(
        "smol", {each: ServedModel("smol", FakePipeline(), version=each) for each in versions}, split
    )


def test_prometheus_shows_each_releases_share_and_the_rollout_step() -> None:
    served, metrics = Registry(), Metrics()
    served.publish({"smol": lineup(SPLIT, 1, 2, 3)})
    releases = ReleaseMetrics(served.published)
    metrics.expose(releases)
    releases.rolled_back("smol")
    text = metrics.render().decode()
    for line in (
        'inflight_release_share{model="smol",release="1"} 0.75',
        'inflight_release_share{model="smol",release="2"} 0.25',
        'inflight_release_share{model="smol",release="3"} 0.0',
        'inflight_rollout_step{model="smol",release="2"} 2.0',
        'inflight_rollbacks_total{model="smol"} 1.0',
    ):
        assert line in text


def test_prometheus_shows_what_a_canary_has_shown_of_itself() -> None:
    prometheus = CollectorRegistry()
    releases = ReleaseMetrics(Registry().published)
    prometheus.register(releases)
    gates = {"errors": (0.4, 0.0), "objective between tokens": (None, 0.25)}
    releases.proved([Proof("smol", 2, {"between_tokens": 1.5}, 0.5, 0.9, gates), Proof("other", 3)])
    text = generate_latest(prometheus).decode()
    for line in (
        'inflight_canary_slowdown_ratio{measure="between_tokens",model="smol",release="2"} 1.5',
        'inflight_canary_golden_failed_ratio{model="smol",release="2"} 0.5',
        'inflight_canary_likeness_ratio{model="smol",release="2"} 0.9',
        'inflight_canary_evidence_ratio{gate="errors",model="smol",release="2",side="for"} 0.4',
        'inflight_canary_evidence_ratio{gate="objective between tokens",model="smol",release="2",'
        'side="against"} 0.25',
    ):
        assert line in text
    assert "other" not in text


def test_without_a_rollout_there_is_no_step_and_rollbacks_start_at_zero() -> None:
    served, prometheus = Registry(), CollectorRegistry()
    prometheus.register(ReleaseMetrics(served.published))
    assert b"{" not in generate_latest(prometheus)
    served.publish({"smol": lineup(replace(SPLIT, rollout_id=None), 1, 2)})
    text = generate_latest(prometheus).decode()
    assert "inflight_rollout_step{" not in text
    assert 'inflight_rollbacks_total{model="smol"} 0.0' in text
