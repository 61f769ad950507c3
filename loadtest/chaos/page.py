"""A run of faults as one page of HTML: the verdict, a timeline, and what came of each fault."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from loadtest.chaos.episode import EpisodeResult, outcome_of
from loadtest.report.page import Html, cards, count, page, table, time

_COLOURS = {"whole": "var(--c1)", "refused": "var(--unsure)", "cut": "var(--c6)", "left": "var(--bad)"}
_WIDTH, _HEIGHT, _LEFT, _TOP = 1100, 150, 50, 18
_MOST_S = 30.0
_EPISODES_A_ROW = 10
_HEADINGS = (
    *("", "fault", "victim", "requests", "whole", "refused", "cut"),
    *("held", "at rest after", "limit", "longest silence"),
)


def chaos_page(
    command: str, results: Sequence[EpisodeResult], skipped: Mapping[str, str], machine: str
) -> str:
    violations = sum(len(each.violations) for each in results)
    kept = "kept" if not violations else "missed"
    words = f"{count(violations)} violations" if violations else "No violation"
    outcomes = sum((each.outcomes for each in results), Counter[str]())
    body = [
        "<h1>Faults on purpose</h1>",
        f'<p class="muted"><code>{escape(command)}</code> · {escape(machine)}</p>',
        f'<p class="verdict {kept}">{words} in {len(results)} faults</p>',
        cards(
            [
                (count(len(results)), "faults"),
                (count(sum(outcomes.values())), "requests"),
                (count(outcomes["whole"]), "complete answers, the same as without faults"),
                (count(outcomes["cut"]), "cut with their connection"),
            ]
        ),
        "<h2>Timeline</h2>",
        '<p class="muted">Each dot is a request, by when it was sent and how long it took; shaded, the '
        f"fault; the line marks when all was at rest again. A time above {_MOST_S:g} s is drawn at the top. "
        + " ".join(
            f'<span class="key" style="background: {colour}"></span>{outcome}'
            for outcome, colour in _COLOURS.items()
        )
        + "</p>",
        *(
            _timeline(results[start : start + _EPISODES_A_ROW])
            for start in range(0, len(results), _EPISODES_A_ROW)
        ),
        "<h2>Faults</h2>",
        table(_HEADINGS, [_row(each) for each in results], texts=3),
    ]
    if violations:
        body += ["<h2>Violations</h2>", table(["", "fault", "what"], list(_violations(results)), texts=3)]
    if skipped:
        rows = [[name, why] for name, why in skipped.items()]
        body += ["<h2>Left out</h2>", table(["fault", "because"], rows, texts=2)]
    return page("Faults on purpose", body)


def _row(result: EpisodeResult) -> list[str]:
    outcomes, episode = result.outcomes, result.episode
    numbers = [count(outcomes[each]) for each in ("whole", "refused", "cut")]
    return [
        str(episode.number),
        episode.name,
        result.victim,
        count(len(result.requests)),
        *numbers,
        time(result.over_s - result.struck_s),
        time(result.rest_s),
        time(result.limit_s),
        time(result.longest_silence_s),
    ]


def _violations(results: Sequence[EpisodeResult]) -> Iterator[list[str | Html]]:
    for result in results:
        for what in result.violations:
            message = Html(f'<span class="message">{escape(what)}</span>')
            yield [str(result.episode.number), result.episode.name, message]


def _timeline(results: Sequence[EpisodeResult]) -> str:
    """Some faults in a row, one after another, as they came."""
    total_s = sum(each.recovered_s for each in results) or 1.0
    scale = (_WIDTH - _LEFT) / total_s
    parts, at_s = [_axis()], 0.0
    for result in results:
        parts.append(_drawn(result, _LEFT + at_s * scale, scale))
        at_s += result.recovered_s
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT + _TOP + 4}" width="100%" font-size="10" '
        f'font-family="sans-serif" fill="currentColor">{"".join(parts)}</svg>'
    )


def _axis() -> str:
    marks = (0, 1, 5, 10, _MOST_S)
    return "".join(
        f'<text x="{_LEFT - 6}" y="{_height(mark) + 3:.1f}" text-anchor="end">{mark:g} s</text>'
        f'<line x1="{_LEFT}" x2="{_WIDTH}" y1="{_height(mark):.1f}" y2="{_height(mark):.1f}" '
        'stroke="var(--grid)"/>'
        for mark in marks
    )


def _height(took_s: float) -> float:
    """The first seconds have most of the height."""
    share = math.sqrt(min(took_s, _MOST_S) / _MOST_S)
    return _TOP + _HEIGHT * (1 - share)


def _drawn(result: EpisodeResult, left: float, scale: float) -> str:
    begin, end = left + result.struck_s * scale, left + max(result.over_s, result.struck_s + 0.2) * scale
    rest = left + result.recovered_s * scale
    colour = "var(--bad)" if result.violations else "var(--muted)"
    words = f"{result.episode.what}: {result.victim}"
    parts = [
        f'<rect x="{begin:.1f}" y="{_TOP}" width="{end - begin:.1f}" height="{_HEIGHT}" fill="{colour}" '
        f'fill-opacity="0.25"><title>{escape(words)}</title></rect>',
        f'<line x1="{rest:.1f}" x2="{rest:.1f}" y1="{_TOP}" y2="{_TOP + _HEIGHT}" stroke="var(--grid)"/>',
        f'<text x="{left + 2:.1f}" y="{_TOP - 5}">{escape(result.episode.name)}</text>',
    ]
    for each in result.requests:
        took_s = each.ended_s if each.ended_s is not None else _MOST_S
        parts.append(
            f'<circle cx="{left + each.at_s * scale:.1f}" cy="{_height(took_s):.1f}" r="1.8" '
            f'fill="{_COLOURS[outcome_of(each)]}"/>'
        )
    return "".join(parts)
