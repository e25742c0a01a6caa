"""From an Altair chart to an inline SVG that follows the page's colours.

Altair with vl-convert renders in this process: no browser, no network (fetching is refused by an empty allow-list).
Colours are written as CSS variables, so that one figure serves light, dark and print. Each figure has a title and a
description for screen readers; the page puts the numbers behind it in a table.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from typing import Any

import altair as alt
import vl_convert
from markupsafe import Markup

# Okabe and Ito's colours, named by role in style.css (light and dark values there). Dash and shape say the same again.
COLOURS = [f"var(--tier-{i})" for i in range(8)]
DASHES: list[list[float]] = [[1, 0], [7, 3], [2, 2.5], [9, 3, 2, 3], [4, 4], [12, 3], [3, 1.5], [6, 2, 2, 2, 2, 2]]
SHAPES = ["circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "triangle-left"]
INK, SOFT, RULE = "var(--ink)", "var(--soft)", "var(--rule)"


@dataclass(frozen=True)
class Palette:
    """The look of each tier: the same in every figure of the page. Beyond eight tiers looks repeat."""

    tiers: list[str]

    def index(self, tier: str) -> int:
        return self.tiers.index(tier) % len(COLOURS)

    def colour(self, tier: str) -> str:
        return COLOURS[self.index(tier)]

    def dash(self, tier: str) -> str:
        """The tier's dashes as an SVG attribute."""
        return " ".join(f"{d:g}" for d in DASHES[self.index(tier)])

    def _scale(self, values: list[Any]) -> alt.Scale:
        return alt.Scale(domain=self.tiers, range=[values[i % len(values)] for i in range(len(self.tiers))])

    def colours(self) -> alt.Color:
        return alt.Color("tier:N", scale=self._scale(COLOURS), legend=None)

    def dashes(self) -> alt.StrokeDash:
        return alt.StrokeDash("tier:N", scale=self._scale(DASHES), legend=None)

    def shapes(self) -> alt.Shape:
        return alt.Shape("tier:N", scale=self._scale(SHAPES), legend=None)


@dataclass(frozen=True)
class Table:
    """The numbers behind a figure; ``words``: its cells are read as text, not compared as figures."""

    head: list[str]
    rows: list[list[str]]
    note: str = ""
    words: bool = False


@dataclass(frozen=True)
class Figure:
    """One panel. ``svg`` is None where there was nothing to draw; ``reason`` then says why."""

    title: str
    svg: Markup | None
    reason: str = ""
    note: str = ""


@dataclass(frozen=True)
class FigureGroup:
    """Panels that share a caption and one table of numbers."""

    key: str
    caption: str
    panels: list[Figure]
    table: Table
    columns: int = 3
    note: str = ""
    row_labels: list[str] = field(default_factory=list)


_DEAD = re.compile(r'<path class="(?:background|foreground)"[^>]*?/>')
_ARIA = re.compile(r' (?:aria-[a-z]+|role|pointer-events|class)="[^"]*"')
_HIDDEN_TEXT = re.compile(r'<text [^>]*opacity="0"[^>]*>[^<]*</text>')
_LONG = re.compile(r"(\d+\.\d{2})\d+")
_EMPTY_GROUP = re.compile(r"<g(?: [^>]*)?></g>|<g/>")


def _slim(svg: str) -> str:
    """Drops what a still picture does not need: interaction hooks, empty groups, digits beyond a hundredth."""
    for pattern in (_DEAD, _ARIA, _HIDDEN_TEXT):
        svg = pattern.sub("", svg)
    svg = _LONG.sub(r"\1", svg)
    while (shorter := _EMPTY_GROUP.sub("", svg)) != svg:
        svg = shorter
    return svg.replace(' opacity="1"', "").replace(' stroke-width="1"', "").replace(' font-family="inherit"', "")


def render(chart: Any, title: str, description: str, note: str = "") -> Figure:
    """Renders a chart of fixed size; ``title`` and ``description`` become the SVG's, ``note`` goes beside it."""
    spec = (
        chart.configure(background="transparent", font="inherit", padding=2)
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=SOFT,
            titleColor=SOFT,
            gridColor=RULE,
            domainColor=RULE,
            tickColor=RULE,
            labelFontSize=10.5,
            titleFontSize=10.5,
            titleFontWeight="normal",
            labelFontWeight="normal",
            gridOpacity=1,
            tickSize=3,
        )
        .to_dict()
    )
    svg = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[])
    size = re.search(r'width="(\d+)" height="(\d+)" viewBox="([^"]*)"', svg)
    if not size:
        raise ValueError("the renderer wrote an SVG without a size; expected width, height and viewBox")
    body = _slim(svg[svg.index(">") + 1 : svg.rindex("</svg>")])
    head = (
        f'<svg class="figure" role="img" width="{size[1]}" height="{size[2]}" viewBox="{size[3]}" '
        f'style="max-width:{size[1]}px"><title>{html.escape(title)}</title><desc>{html.escape(description)}</desc>'
    )
    return Figure(title, Markup(f"{head}{body}</svg>"), note=note)
