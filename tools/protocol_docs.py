"""Writes the table of docs/protocol-coverage.md from the broker's routes: `python -m tools.protocol_docs [--check]`."""

from __future__ import annotations

import sys
from pathlib import Path

from kohort.broker.routes import ROUTES

PAGE = Path(__file__).resolve().parent.parent / "docs" / "protocol-coverage.md"
BEGIN, END = "<!-- table: make docs -->", "<!-- end of table -->"
KAFKA = {
    0: (0, 13), 1: (4, 18), 2: (1, 11), 3: (0, 13), 8: (2, 10), 9: (1, 10), 10: (0, 6), 11: (0, 9), 12: (0, 4),
    13: (0, 5), 14: (0, 5), 15: (0, 6), 16: (0, 5), 17: (0, 1), 18: (0, 5), 19: (2, 7), 20: (1, 6), 21: (0, 2),
    22: (0, 5), 23: (2, 4), 24: (0, 5), 25: (0, 4), 26: (0, 5), 27: (1, 2), 28: (0, 6), 29: (1, 3), 30: (1, 3),
    31: (1, 3), 32: (1, 4), 33: (0, 2), 34: (1, 2), 35: (1, 5), 36: (0, 2), 37: (0, 3), 38: (1, 3), 39: (1, 2),
    40: (1, 2), 41: (1, 3), 42: (0, 3), 43: (0, 2), 44: (0, 1), 45: (0, 1), 46: (0, 0), 47: (0, 0), 48: (0, 1),
    49: (0, 1), 50: (0, 0), 51: (0, 0), 55: (0, 2), 57: (0, 2), 60: (0, 2), 61: (0, 0), 64: (0, 0), 65: (0, 0),
    66: (0, 2), 68: (0, 1), 69: (0, 1), 74: (0, 1), 75: (0, 0), 76: (1, 1), 77: (1, 1), 78: (1, 2), 79: (1, 2),
    80: (0, 1), 81: (0, 0), 83: (0, 0), 84: (0, 0), 85: (0, 1), 86: (0, 0), 87: (0, 1), 88: (0, 1), 89: (0, 1),
    90: (0, 1), 91: (0, 0), 92: (0, 0), 93: (0, 0), 94: (0, 0),
}  # fmt: skip
"""The versions that a broker of Apache Kafka 4.4.0 names in ApiVersions, by key; a test asks one."""
LEFT_OUT = {
    64: ("UnregisterBroker", "the one broker can't go"),
    76: ("ShareGroupHeartbeat", "share groups"),
    77: ("ShareGroupDescribe", "share groups"),
    78: ("ShareFetch", "share groups"),
    79: ("ShareAcknowledge", "share groups"),
    80: ("AddRaftVoter", "the quorum is this broker alone"),
    81: ("RemoveRaftVoter", "the quorum is this broker alone"),
    83: ("InitializeShareGroupState", "share groups"),
    84: ("ReadShareGroupState", "share groups"),
    85: ("WriteShareGroupState", "share groups"),
    86: ("DeleteShareGroupState", "share groups"),
    87: ("ReadShareGroupStateSummary", "share groups"),
    89: ("StreamsGroupDescribe", "streams groups"),
    90: ("DescribeShareGroupOffsets", "share groups"),
    91: ("AlterShareGroupOffsets", "share groups"),
    92: ("DeleteShareGroupOffsets", "share groups"),
    93: ("StreamsGroupTopologyDescriptionUpdate", "streams groups"),
    94: ("UnregisterController", "the one controller can't go"),
}


def table() -> str:
    """Return the table of every API that either broker supports."""
    lines = ["| key | API | here | Apache Kafka 4.4.0 | left out because |", "|---|---|---|---|---|"]
    for key in sorted({*ROUTES, *KAFKA}):
        route, theirs = ROUTES.get(key), KAFKA.get(key)
        name, reason = (route.name, "") if route is not None else LEFT_OUT[key]
        ours = None if route is None else (route.advertised_low, route.high)
        lines.append(f"| {key} | {name} | {_span(ours)} | {_span(theirs)} | {reason} |")
    return "\n".join(lines)


def _span(span: tuple[int, int] | None) -> str:
    return "-" if span is None else f"{span[0]} to {span[1]}"


def page(current: str) -> str:
    """Return the page with the current table."""
    before, _, rest = current.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


def main() -> int:
    """Write the page, or with --check report whether it is current."""
    current = PAGE.read_text(encoding="utf-8")
    if "--check" in sys.argv[1:]:
        print("docs/protocol-coverage.md is " + ("current" if current == page(current) else "out of date: make docs"))
        return 0 if current == page(current) else 1
    PAGE.write_text(page(current), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
