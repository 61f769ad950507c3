"""A figure of matplotlib as SVG that stands inside a page and refers to nothing outside it.

Colours are names of the page's style sheet, so that a plot is light or dark as the page is; matplotlib is
given stand-ins for them.
"""

from __future__ import annotations

import io
import re
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, GRID, GOAL = "#010101", "#010102", "#010103"
SERIES = tuple(f"#0102{number:02x}" for number in range(1, 10))
OTHERS = SERIES[6]  # grey
LOW, MIDDLE, HIGH = "#010301", "#010302", "#010303"  # of one thing, from the usual to the rare
_NAMES = {
    INK: "ink",
    GRID: "grid",
    GOAL: "goal",
    LOW: "low",
    MIDDLE: "middle",
    HIGH: "high",
    **{colour: f"c{number}" for number, colour in enumerate(SERIES, 1)},
}


def inline_svg(figure: Figure, name: str, label: str) -> str:
    out = io.StringIO()
    figure.savefig(out, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator")))
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>\s*", "", text, flags=re.DOTALL)
    size = re.search(r'viewBox="[^"]*"', text)
    assert size is not None
    text = re.sub(
        r"<svg[^>]*>", f'<svg {size[0]} role="img" aria-label="{escape(label, quote=True)}">', text, count=1
    )
    text = re.sub(r'<g id="[^"]*"', "<g", text)
    text = text.replace("xlink:href", "href").replace('xmlns:xlink="http://www.w3.org/1999/xlink"', "")
    text = re.sub(r'id="(\w+)"', rf'id="{name}-\1"', text)
    text = re.sub(r'(href="|url\()#(\w+)', rf"\1#{name}-\2", text)
    text = re.sub(r"font: (?:\d+ )?([\d.]+px) [^;\"]*", r"font-size: \1", text)
    text = re.sub(r"(\d\.\d{2})\d+", r"\1", text)
    for colour, variable in _NAMES.items():
        text = text.replace(colour, f"var(--{variable})")
    return re.sub(r"<!--.*?-->\s*|\n\s*", lambda found: "\n" if found[0][0] == "\n" else "", text)
