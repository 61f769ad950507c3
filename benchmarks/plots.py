"""Plots of what was measured, as SVG files for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

_COLOURS = ("#1b6ca8", "#3d9be0", "#a6d0f5", "#b5651d", "#e0a66b", "#7a7a7a", "#bdbdbd")


class Plots:
    """Writes into `directory`, or nothing at all where there is none."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory

    def bars(
        self,
        name: str,
        title: str,
        unit: str,
        groups: Sequence[str],
        series: Mapping[str, Sequence[float]],
        goal: float | None = None,
        logarithmic: bool = False,
    ) -> None:
        """A bar for each series in each group, with its value above it."""
        if self._directory is None:
            return
        import matplotlib

        matplotlib.use("svg")
        matplotlib.rcParams.update({"svg.hashsalt": "inflight", "font.size": 9})
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(figsize=(9, 4.2), layout="constrained")
        width = 0.85 / len(series)
        for number, (label, values) in enumerate(series.items()):
            places = [group + (number - (len(series) - 1) / 2) * width for group in range(len(groups))]
            drawn = axes.bar(places, values, width, label=label, color=_COLOURS[number % len(_COLOURS)])
            axes.bar_label(drawn, [f"{value:.3g}" for value in values], fontsize=7, padding=1)
        if goal is not None:
            axes.axhline(goal, color="#333333", linewidth=0.8, linestyle="--", label="goal")
        axes.set_xticks(range(len(groups)), groups)
        axes.set_ylabel(unit)
        if logarithmic:
            axes.set_yscale("log")
        axes.set_title(title)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
        self._directory.mkdir(parents=True, exist_ok=True)
        figure.savefig(self._directory / f"{name}.svg", metadata={"Date": None})
        pyplot.close(figure)
