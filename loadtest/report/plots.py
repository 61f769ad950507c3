"""Kinds of plots: no numbers are decided here, only how they look."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from loadtest.report.inline_svg import GOAL, GRID, INK, OTHERS, SERIES, inline_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from loadtest.report.windows import Values

_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "inflight",
    "font.size": 8,
    "axes.edgecolor": GRID,
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.linewidth": 0.7,
    "xtick.major.size": 2.5,
    "ytick.major.size": 0,
    "xtick.minor.size": 0,
    "ytick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.handlelength": 1.2,
    "legend.columnspacing": 1.2,
    "legend.borderaxespad": 0.2,
    "lines.linewidth": 1.5,
    "lines.solid_capstyle": "round",
}
_WIDTH_IN, HEIGHT_IN = 5.3, 2.6
_RIGHT_IN, _TOP_IN, _BOTTOM_IN = 0.12, 0.26, 0.44


@dataclass(frozen=True)
class Line:
    label: str
    values: Values
    colour: str
    is_dashed: bool = False


@dataclass(frozen=True)
class Panel:
    """Lines over the same time; `goals` are lines across, with their names."""

    unit: str
    lines: Sequence[Line]
    goals: Mapping[str, float]


@dataclass(frozen=True)
class Times:
    """Moments in the unit that a run of that length is told in."""

    unit: str
    divisor: float

    @classmethod
    def of(cls, longest_s: float) -> Times:
        return cls("minutes", 60.0) if longest_s > 600 else cls("seconds", 1.0)


def over_time(name: str, label: str, moments_s: Values, panels: Sequence[Panel]) -> str:
    """Points are drawn too: a line between two windows says nothing of what was between."""
    times = Times.of(float(moments_s[-1]))
    with styled():
        height_in = HEIGHT_IN * (1 if len(panels) == 1 else 0.7 * len(panels))
        figure, rows = blank_figure(len(panels), height_in)
        for axes, panel in zip(rows, panels, strict=True):
            for line in panel.lines:
                style = "--" if line.is_dashed else "-"
                points = np.isfinite(line.values).sum()
                # A single point has no line, dashed or not.
                marker = "o" if points < (2 if line.is_dashed else 60) else ""
                axes.plot(
                    moments_s / times.divisor,
                    line.values,
                    style,
                    marker=marker,
                    markersize=2.2,
                    color=line.colour,
                    label=line.label,
                )
            _goals_across(axes, panel.goals)
            axes.set_ylabel(panel.unit)
            axes.set_ylim(0, _top(axes))
            axes.set_xlim(0, max(1e-3, float(moments_s[-1] + moments_s[0])) / times.divisor)
            legend(axes)
        rows[-1].set_xlabel(times.unit)
        has_goals = any(panel.goals for panel in panels)
        fit(figure, right_in=0.72 if has_goals else _RIGHT_IN, between=0.42)
        return inline_svg(figure, name, label)


def stacked(name: str, label: str, moments_s: Values, layers: Mapping[str, Values], unit: str) -> str:
    times = Times.of(float(moments_s[-1]))
    with styled():
        figure, (axes,) = blank_figure(1, HEIGHT_IN)
        known = [np.nan_to_num(values) for values in layers.values()]
        colours = [
            OTHERS if "others" in layer else SERIES[place % len(SERIES)] for place, layer in enumerate(layers)
        ]
        # Steps: what is shown is the mean of a window.
        axes.stackplot(
            moments_s / times.divisor, *known, labels=list(layers), colors=colours, step="mid", linewidth=0
        )
        axes.set_ylabel(unit)
        axes.set_xlabel(times.unit)
        axes.set_ylim(0, _top(axes))
        axes.set_xlim(0, max(1e-3, float(moments_s[-1] + moments_s[0])) / times.divisor)
        fit(figure, top_in=legend(axes))
        return inline_svg(figure, name, label)


def bars(
    name: str, label: str, groups: Sequence[str], series: Mapping[str, Sequence[float]], unit: str
) -> str:
    """Lying, so that names can be read; the first group on top."""
    with styled():
        rows = len(groups) * len(series)
        figure, (axes,) = blank_figure(1, max(1.2, 0.55 + 0.2 * rows))
        height = 0.8 / len(series)
        places = np.arange(len(groups), dtype=float)
        for number, (title, values) in enumerate(series.items()):
            at = places + (number - (len(series) - 1) / 2) * height
            drawn = axes.barh(at, values, height * 0.92, color=SERIES[number], label=title)
            axes.bar_label(drawn, [_count(value) for value in values], padding=2, fontsize=7.5, color=INK)
        axes.set_yticks(places, [_shortened(each) for each in groups])
        axes.invert_yaxis()
        axes.set_xlabel(unit)
        axes.xaxis.set_major_formatter(lambda value, _: _count(value))
        axes.set_xlim(0, 1.15 * max([1e-9, *(max(values, default=0.0) for values in series.values())]))
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x", color=GRID, linewidth=0.6)
        longest = max(len(_shortened(each)) for each in groups)
        fit(figure, left_in=0.2 + 0.072 * longest, top_in=legend(axes) if len(series) > 1 else 0.08)
        return inline_svg(figure, name, label)


def stacked_bars(name: str, label: str, groups: Mapping[str, Mapping[str, float]], unit: str) -> str:
    """One bar for each group, made of the same parts."""
    parts = list(dict.fromkeys(part for values in groups.values() for part in values))
    with styled():
        figure, (axes,) = blank_figure(1, 0.95 + 0.32 * len(groups))
        left = np.zeros(len(groups))
        for number, part in enumerate(parts):
            widths = np.array([values.get(part, 0.0) for values in groups.values()])
            colour = SERIES[number % len(SERIES)]
            axes.barh(np.arange(len(groups)), widths, 0.62, left=left, color=colour, label=part)
            left = left + widths
        axes.set_yticks(np.arange(len(groups)), list(groups))
        axes.invert_yaxis()
        axes.set_xlabel(unit)
        axes.grid(visible=False, axis="y")
        axes.grid(visible=True, axis="x", color=GRID, linewidth=0.6)
        fit(figure, top_in=legend(axes))
        return inline_svg(figure, name, label)


def styled() -> Any:
    import matplotlib

    return matplotlib.rc_context(_STYLE)


def blank_figure(
    rows: int, height_in: float, heights: Sequence[float] | None = None
) -> tuple[Figure, Sequence[Axes]]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(_WIDTH_IN, height_in))
    found = list(figure.subplots(rows, 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0])
    for axes in found:
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.set_axisbelow(True)
        axes.yaxis.set_major_formatter(lambda value, _: _count(value))
        axes.grid(visible=True, axis="y", color=GRID, linewidth=0.6)
        axes.patch.set_alpha(0)
    return figure, found


def _top(axes: Axes) -> float:
    """A little above the highest; what never rose above 0 should look like it."""
    most = axes.dataLim.y1
    return 1.0 if not math.isfinite(most) or most <= 0 else 1.06 * most


def fit(
    figure: Figure,
    left_in: float = 0.58,
    right_in: float = _RIGHT_IN,
    top_in: float = _TOP_IN,
    between: float = 0.16,
) -> None:
    """By hand: laying a figure out by what its texts measure takes as long as drawing it."""
    width_in, height_in = figure.get_size_inches()
    figure.subplots_adjust(
        left=left_in / width_in,
        right=1 - right_in / width_in,
        top=1 - top_in / height_in,
        bottom=_BOTTOM_IN / height_in,
        hspace=between,
    )


def legend(axes: Axes, place: Axes | None = None) -> float:
    """Above the plot; how high that is, in inches."""
    handles, labels = axes.get_legend_handles_labels()
    if not labels:
        return 0.08
    widest_in = 0.4 + 0.062 * max(map(len, labels))
    columns = max(1, min(len(labels), int((_WIDTH_IN - 0.5) / widest_in)))
    (place or axes).legend(handles, labels, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=columns)
    return _TOP_IN + 0.16 * ((len(labels) - 1) // columns)


def _goals_across(axes: Axes, goals: Mapping[str, float]) -> None:
    top = 1.06 * max([0.0, axes.dataLim.y1 if math.isfinite(axes.dataLim.y1) else 0.0])
    for title, goal in goals.items():
        # One that is far above everything would press the rest flat.
        if goal <= 1.5 * top or top == 0:
            axes.axhline(goal, color=GOAL, linewidth=1, linestyle=(0, (3, 2)))
            place = axes.get_yaxis_transform()
            axes.text(1.01, goal, title, transform=place, va="center", fontsize=7, color=GOAL)


def _count(value: float) -> str:
    for limit, divisor, unit in ((1e9, 1e9, " G"), (1e6, 1e6, " M"), (1e4, 1e3, " k")):
        if value >= limit:
            return f"{value / divisor:.3g}{unit}"
    return f"{value:,.3g}" if value < 100 else f"{value:,.0f}"


def _shortened(name: str) -> str:
    return name if len(name) <= 18 else f"{name[:15]}…"
