"""The figures of a benchmark as one SVG: a bar for each row, and a line from its slowest to its fastest run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

from bench.goals import is_ours
from bench.harness import rate_text

WIDTH, _LEFT, _BAR, _ROW, _TITLE = 900, 290, 430, 22, 30
_OURS, _PEERS, _SPREAD = "#1f6feb", "#8b949e", "#d29922"
_STYLE = "font-family='sans-serif' font-size='13' fill='#57606a'"


def drawing(shown: Sequence[Mapping[str, Any]]) -> str:
    """Return the SVG. Bars of one figure share a scale, from zero to its fastest run."""
    parts: list[str] = []
    top = 8
    for figure in shown:
        rows = [row for row in figure["rows"] if not row.get("absent")]
        if not rows:
            continue
        parts.append(_text(8, top + 16, f"{figure['title']} ({figure['unit']})", "font-weight='bold'"))
        top += _TITLE
        most = max(row["rate_max"] for row in rows) or 1.0
        for row in rows:
            parts += _bar(row, top, _BAR / most)
            top += _ROW
        top += 10
    size = f"width='{WIDTH}' height='{top}' viewBox='0 0 {WIDTH} {top}'"
    head = f"<svg xmlns='http://www.w3.org/2000/svg' {size} {_STYLE}>"
    return "\n".join([head, "<rect width='100%' height='100%' fill='white'/>", *parts, "</svg>", ""])


def _bar(row: Mapping[str, Any], top: int, scale: float) -> list[str]:
    """Return one row: name, bar, spread, rate."""
    length = row["rate_median"] * scale
    low, high = _LEFT + row["rate_min"] * scale, _LEFT + row["rate_max"] * scale
    color = _OURS if is_ours(row["name"]) else _PEERS
    middle = top + 7
    return [
        _text(_LEFT - 8, top + 11, row["name"][:44], "text-anchor='end'"),
        f"<rect x='{_LEFT}' y='{top}' width='{length:.1f}' height='14' fill='{color}'/>",
        f"<path d='M{low:.1f} {middle}H{high:.1f}M{low:.1f} {top + 3}v8M{high:.1f} {top + 3}v8' stroke='{_SPREAD}'/>",
        _text(max(high, _LEFT + length) + 8, top + 11, rate_text(row["rate_median"])),
    ]


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f"<text x='{x:.1f}' y='{y}' {more}>{escape(text)}</text>"
