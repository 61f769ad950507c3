"""Plots of what was measured, as SVG files for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isnan
from pathlib import Path
from typing import Any

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
        figure, axes = _pyplot().subplots(figsize=(9, 4.2), layout="constrained")
        width = 0.85 / len(series)
        for number, (label, values) in enumerate(series.items()):
            places = [group + (number - (len(series) - 1) / 2) * width for group in range(len(groups))]
            drawn = axes.bar(places, values, width, label=label, color=_COLOURS[number % len(_COLOURS)])
            axes.bar_label(
                drawn, ["" if isnan(value) else f"{value:.3g}" for value in values], fontsize=7, padding=1
            )
        if goal is not None:
            axes.axhline(goal, color="#333333", linewidth=0.8, linestyle="--", label="goal")
        axes.set_xticks(range(len(groups)), groups)
        axes.set_ylabel(unit)
        if logarithmic:
            axes.set_yscale("log")
        axes.set_title(title)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
        self._save(figure, name)

    def over_time(
        self,
        name: str,
        title: str,
        at_s: Sequence[float],
        panels: Mapping[str, Mapping[str, Sequence[float | None]]],
        marks: Sequence[tuple[float, str]] = (),
    ) -> None:
        """A panel for each unit, a line for each series; marks are moments with their names."""
        if self._directory is None:
            return
        pyplot = _pyplot()
        size = (9, 2 + 1.7 * len(panels))
        figure, rows = pyplot.subplots(len(panels), 1, figsize=size, sharex=True, layout="constrained")
        for axes, (unit, series) in zip(rows, panels.items(), strict=True):
            for number, (label, values) in enumerate(series.items()):
                known = [float("nan") if value is None else value for value in values]
                colour = _COLOURS[(2 * number) % len(_COLOURS)]
                axes.plot(at_s, known, label=label, color=colour, linewidth=1.4, marker=".", markersize=3)
            for moment_s, _ in marks:
                axes.axvline(moment_s, color="#333333", linewidth=0.6, linestyle=":")
            axes.set_ylabel(unit)
            axes.set_ylim(0, max(1.0, axes.get_ylim()[1]))  # what never rose above 0 should look like it
            axes.spines[["top", "right"]].set_visible(False)
            axes.legend(frameon=False, fontsize=8, loc="upper left")
        for number, (moment_s, label) in enumerate(marks):
            place = rows[0].get_xaxis_transform()
            rows[0].text(moment_s, 1.02 + 0.09 * (number % 3), label, fontsize=6, transform=place)
        rows[-1].set_xlabel("seconds")
        figure.suptitle(title)
        self._save(figure, name)

    def _save(self, figure: Any, name: str) -> None:
        assert self._directory is not None
        self._directory.mkdir(parents=True, exist_ok=True)
        figure.savefig(self._directory / f"{name}.svg", metadata={"Date": None})
        _pyplot().close(figure)


def _pyplot() -> Any:
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "inflight", "font.size": 9})
    from matplotlib import pyplot

    return pyplot
