"""The memory of a soak's parts over time as one SVG: a curve for each part, a mark for each fault."""

from __future__ import annotations

from xml.sax.saxutils import escape

from tests.soak.run import Report

WIDTH, _LEFT, _CURVE_WIDTH, _CURVE_HEIGHT, _ROW = 900, 150, 640, 44, 62
_CURVE, _FAULT = "#1f6feb", {"SIGKILL": "#cf222e", "SIGTERM": "#d29922", "SIGSTOP": "#8250df"}
_STYLE = "font-family='sans-serif' font-size='12' fill='#57606a'"


def drawing(report: Report) -> str:
    """Return the SVG. Each curve has a scale of its own, from zero to its highest value."""
    end = max((second for curve in report.samples.values() for second, _ in curve), default=0.0) or 1.0
    height = 30 + _ROW * len(report.samples) + 20
    size = f"width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}'"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' {size} {_STYLE}>",
        "<rect width='100%' height='100%' fill='white'/>",
        _text(8, 18, f"Resident memory over {end / 60:.0f} minutes; marks:"),
    ]
    for number, (kind, color) in enumerate(_FAULT.items()):
        parts.append(f"<rect x='{290 + 90 * number}' y='8' width='3' height='12' fill='{color}'/>")
        parts.append(_text(297 + 90 * number, 18, kind))
    for number, (name, curve) in enumerate(report.samples.items()):
        parts += _row(report, name, curve, 30 + _ROW * number, _CURVE_WIDTH / end)
    return "\n".join([*parts, "</svg>", ""])


def _row(report: Report, name: str, curve: list[tuple[float, float]], top: int, scale: float) -> list[str]:
    most = max((mib for _, mib in curve), default=0.0) or 1.0
    floor = top + _CURVE_HEIGHT
    points = " ".join(f"{_LEFT + second * scale:.1f},{floor - mib / most * _CURVE_HEIGHT:.1f}" for second, mib in curve)
    faults = [
        f"<rect x='{_LEFT + second * scale:.1f}' y='{floor}' width='2' height='6' fill='{_FAULT[kind]}'/>"
        for second, part, kind in report.befallen
        if part == name
    ]
    return [
        _text(8, top + 26, name),
        f"<path d='M{_LEFT} {floor}h{_CURVE_WIDTH}' stroke='#d0d7de'/>",
        f"<polyline points='{points}' fill='none' stroke='{_CURVE}'/>",
        *faults,
        _text(_LEFT + _CURVE_WIDTH + 10, top + 12, f"{most:,.0f} MiB at most"),
    ]


def _text(x: float, y: float, text: str) -> str:
    return f"<text x='{x:.0f}' y='{y:.0f}'>{escape(text)}</text>"
