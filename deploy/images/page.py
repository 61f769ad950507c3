"""Writes what a run has measured into docs/deploy.md."""

from __future__ import annotations

import platform
import re
from typing import TYPE_CHECKING, Any

from deploy.compose_file import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE = ROOT / "docs" / "deploy.md"
BEGIN, END = "<!-- images: written by make images -->", "<!-- images: end -->"


def write_page(figures: Mapping[str, Any]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    pattern = re.compile(f"{re.escape(BEGIN)}\n.*?{re.escape(END)}", re.DOTALL)
    if not pattern.search(text):
        raise SystemExit(f"{PAGE.name} has no place for the figures: {BEGIN} is missing")
    PAGE.write_text(pattern.sub(lambda _: f"{BEGIN}\n{rendered(figures)}{END}", text), encoding="utf-8")


def rendered(figures: Mapping[str, Any]) -> str:
    images, serving = figures["images"], figures.get("serving")
    lines = ["| image | to pull | unpacked | Python packages | built in |", "|---|---|---|---|---|"]
    for name, each in images.items():
        sizes = f"{each['packed_mb']} MB | {each['unpacked_mb']} MB"
        lines.append(f"| `{name}` | {sizes} | {each['packages']} | {each['built_in_s']:.0f} s |")
    if serving:
        lines += ["", *_serving(serving)]
    reused = "Unchanged layers of earlier builds were reused."
    return "\n".join([*lines, "", f"Measured on {platform.machine()}. {reused}", ""])


def _serving(serving: Mapping[str, Any]) -> list[str]:
    canary = serving["canary"]
    rollout_s = canary["took_s"] - canary["added_s"]
    lines = [
        f"All containers were healthy {serving['ready_after_s']} s after the first was started. A second "
        f"release was added in {canary['added_s']} s and had taken over {rollout_s:.0f} s later, while "
        f"{canary['answered']} chats were answered and none failed. Restarted one by one under load:",
        "",
        "| restarted | healthy again after | chats answered meanwhile | refused | cut or failed |",
        "|---|---|---|---|---|",
    ]
    for name, each in serving["restarts"].items():
        counts = (
            f"{each['answered']} | {each.get('refused', 0)} | {each.get('cut', 0) + each.get('failed', 0)}"
        )
        lines.append(f"| `{name}` | {each['back_after_s']} s | {counts} |")
    if serving["restarts"]["triton-cpu"].get("cut"):
        lines += [
            "",
            "Answers in flight were cut because the only Triton was away for longer than `revive_wait_s`.",
        ]
    return [*lines, "", *_gpu_image(serving["gpu_image"])]


def _gpu_image(figures: Mapping[str, Any]) -> list[str]:
    return [
        f"Without a GPU the container of `triton` ends with: {figures['refusal']}",
        "",
        'With `inflight_runtime = "synthetic"`, which needs none, it was healthy '
        f"{figures['ready_s']} s after the first of its stack was started, and a chat was answered.",
    ]
