"""Line plots as SVG, written by hand: an installation has no plotting library."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

_COLOURS = ("#1b6ca8", "#b5651d", "#3d9be0", "#7a7a7a", "#2e8b57", "#8b2e62")
_WIDTH, _HEIGHT = 760, 240
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 190, 30, 40

Line = Sequence[tuple[float, float | None]]


@dataclass(frozen=True, slots=True)
class Panel:
    """One diagram; `goal` is a dashed line across it."""

    title: str
    unit: str
    lines: Mapping[str, Line]
    across: str
    goal: float | None = None
    is_logarithmic: bool = False


def draw(panels: Sequence[Panel]) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT * len(panels)}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{_WIDTH}" height="{_HEIGHT * len(panels)}" fill="white"/>',
    ]
    for number, panel in enumerate(panels):
        parts.append(f'<g transform="translate(0 {number * _HEIGHT})">{_drawn(panel)}</g>')
    return "\n".join([*parts, "</svg>"]) + "\n"


class _Axis:
    """Values to places; a logarithmic one leaves out what is not above 0."""

    def __init__(self, values: Sequence[float], begin: float, end: float, is_logarithmic: bool) -> None:
        self._is_logarithmic = is_logarithmic
        self._low, self._high = self._span([value for value in values if value > 0 or not is_logarithmic])
        self._begin, self._end = begin, end

    def _span(self, values: Sequence[float]) -> tuple[float, float]:
        if not values:
            return (0.1, 1.0) if self._is_logarithmic else (0.0, 1.0)
        if self._is_logarithmic:
            return min(values) / 1.2, max(values) * 1.2
        return min(0.0, *values, 0.0), max(*values, 1e-9, 1e-9) * 1.05

    def place(self, value: float) -> float | None:
        low, high = self._low, self._high
        if self._is_logarithmic:
            if value <= 0:
                return None
            value, low, high = math.log(value), math.log(low), math.log(high)
        return self._begin + (value - low) / (high - low) * (self._end - self._begin)

    def ticks(self) -> list[float]:
        if self._is_logarithmic:
            exponents = range(math.floor(math.log10(self._low)), math.ceil(math.log10(self._high)) + 1)
            marks = [10.0**exponent * factor for exponent in exponents for factor in (1, 3)]
        else:
            raw = (self._high - self._low) / 5
            unit = 10.0 ** math.floor(math.log10(raw))
            step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= raw)
            marks = [step * number for number in range(math.ceil(self._low / step), 1000)]
        return [mark for mark in marks if self._low <= mark <= self._high][:12]


def _drawn(panel: Panel) -> str:
    points = [point for line in panel.lines.values() for point in line]
    across = _Axis([x for x, _ in points], _LEFT, _WIDTH - _RIGHT, False)
    heights = [y for _, y in points if y is not None]
    if panel.goal is not None:
        heights.append(panel.goal)
    up = _Axis(heights, _HEIGHT - _BOTTOM, _TOP, panel.is_logarithmic)
    parts = [f'<text x="{_LEFT}" y="16" font-size="13">{escape(panel.title)}</text>']
    parts += _frame(panel, across, up)
    if panel.goal is not None and (y := up.place(panel.goal)) is not None:
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#333" '
            'stroke-dasharray="4 3"/>'
        )
    for number, (label, line) in enumerate(panel.lines.items()):
        parts += _line(number, label, line, across, up)
    return "".join(parts)


def _frame(panel: Panel, across: _Axis, up: _Axis) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    parts = [f'<path d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - _RIGHT}" fill="none" stroke="#333"/>']
    for mark in across.ticks():
        parts.append(
            f'<text x="{across.place(mark):.1f}" y="{bottom + 14}" text-anchor="middle">{mark:g}</text>'
        )
    for mark in up.ticks():
        y = up.place(mark)
        parts.append(f'<text x="{_LEFT - 6}" y="{y:.1f}" dy="4" text-anchor="end">{mark:g}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(
        f'<text x="{middle}" y="{bottom + 30}" text-anchor="middle">{escape(panel.across)}</text>'
        f'<text x="14" y="{(_TOP + bottom) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {(_TOP + bottom) / 2})">{escape(panel.unit)}</text>'
    )
    return parts


def _line(number: int, label: str, line: Line, across: _Axis, up: _Axis) -> list[str]:
    colour = _COLOURS[number % len(_COLOURS)]
    places = [(across.place(x), up.place(y)) for x, y in line if y is not None]
    drawn = " ".join(f"{x:.1f},{y:.1f}" for x, y in places if x is not None and y is not None)
    y = _TOP + 14 * number + 6
    left = _WIDTH - _RIGHT + 12
    parts = [f'<polyline points="{drawn}" fill="none" stroke="{colour}" stroke-width="1.6"/>']
    if len(line) <= 20:
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in places if y]
    parts.append(
        f'<line x1="{left}" x2="{left + 16}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
        f'<text x="{left + 22}" y="{y + 4}">{escape(label)}</text>'
    )
    return parts
