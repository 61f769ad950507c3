"""How values are spread: how often above, up to how much below, on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from loadtest.report.inline_svg import GOAL, inline_svg
from loadtest.report.plots import HEIGHT_IN, blank_figure, fit, legend, styled

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from loadtest.report.windows import Values

_MOST_STEPS = 160


@dataclass(frozen=True)
class Sampled:
    """Some values of one kind."""

    label: str
    values: Values
    colour: str


def distribution(
    name: str, label: str, groups: Sequence[Sampled], unit: str, goals: Mapping[str, float], across: str
) -> str:
    """How often above, up to how much below; the values on a logarithmic axis."""
    every = np.concatenate([group.values for group in groups])
    positive = every[every > 0]
    least, most = (float(positive.min()), float(positive.max())) if positive.size else (1e-3, 1.0)
    marks = [value for value in goals.values() if value > 0]
    least, most = min([least, *marks]) / 1.15, max([most, *marks]) * 1.15
    edges = np.geomspace(least, most, 41)
    with styled():
        figure, (above, below) = blank_figure(2, 1.25 * HEIGHT_IN, heights=(2, 3))
        for group in groups:
            share = 100 * np.histogram(np.clip(group.values, least, most), edges)[0] / group.values.size
            above.stairs(share, edges, color=group.colour, fill=True, alpha=0.25, linewidth=0)
            above.stairs(share, edges, color=group.colour, linewidth=1.1)
            below.plot(*_cumulative(group.values, least), color=group.colour, label=group.label)
        for axes in (above, below):
            axes.set_xscale("log")
            axes.set_xlim(least, most)
            for goal in goals.values():
                axes.axvline(goal, color=GOAL, linewidth=1, linestyle=(0, (3, 2)))
        above.set_ylabel("% in a bin")
        above.set_ylim(0)
        below.set_ylabel(f"% {across}")
        below.set_ylim(0, 102)
        below.set_xlabel(unit)
        _plain_log_ticks(below, least, most)
        legend(below, above)
        _names_of_goals(below, goals)
        fit(figure)
        return inline_svg(figure, name, label)


def _names_of_goals(axes: Axes, goals: Mapping[str, float]) -> None:
    """Along their lines at the bottom, where the sums have left long before."""
    for title, goal in goals.items():
        axes.text(goal * 0.99, 3, title, ha="right", va="bottom", rotation=90, fontsize=7, color=GOAL)


def _cumulative(values: Values, least: float) -> tuple[Values, Values]:
    """Few enough points to draw, and the rare ones among them."""
    ordered = np.sort(values)
    shares = np.linspace(0, 1, min(_MOST_STEPS, max(2, ordered.size + 1)))
    shares = np.union1d(shares, [0.99, 0.995, 0.999] if ordered.size > 100 else [1.0])
    places = np.clip(np.ceil(shares * ordered.size).astype(int) - 1, 0, ordered.size - 1)
    return np.maximum(ordered[places], least), 100 * shares


def _plain_log_ticks(axes: Axes, least: float, most: float) -> None:
    """1, 2, 5, 10: numbers that people read, no powers."""
    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    decades = range(math.floor(math.log10(least)), math.ceil(math.log10(most)) + 1)
    steps = (1, 2, 5) if most / least < 300 else (1,)
    ticks = [step * 10.0**power for power in decades for step in steps]
    axes.xaxis.set_major_locator(FixedLocator([tick for tick in ticks if least <= tick <= most]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
