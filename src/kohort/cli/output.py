"""How commands speak: tables for people, plain columns for pipes, JSON for programs."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # rich is imported where a terminal is
    from rich.table import Table

Row = Mapping[str, Any]


def show(rows: Sequence[Row], columns: Mapping[str, str], *, as_json: bool, empty: str = "nothing") -> None:
    """Prints rows.

    Args:
        rows: one mapping for each.
        columns: key of a row -> heading. JSON has every key of a row, also those without a heading; a terminal leaves
            columns out in which no row has anything.
        as_json: print a JSON array of the rows.
        empty: said on standard error when there are no rows.
    """
    if as_json:
        show_json(rows)
    elif not rows:
        note(empty)
    elif sys.stdout.isatty():
        _show_table(rows, columns)
    else:
        _show_columns(rows, columns)


def show_json(value: Any) -> None:
    """Prints one JSON document, indented."""
    import msgspec

    text = msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2)
    sys.stdout.write(text.decode() + "\n")


def show_json_line(value: Any) -> None:
    """Prints one JSON document on one line, at once: for what goes on."""
    import msgspec

    sys.stdout.write(msgspec.json.encode(value, enc_hook=str).decode() + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """Says something beside the output, on standard error."""
    print(text, file=sys.stderr)


def confirmed(execute: bool, question: str) -> bool:
    """Whether a change that was previewed shall be made.

    With --execute yes; on a terminal the user is asked; otherwise no, and the way to do it is named.
    """
    if execute:
        return True
    if sys.stdin.isatty() and sys.stdout.isatty():
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    note("nothing was changed: this was a preview; add --execute to do it")
    return False


def _text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ",".join(str(part) for part in value) or "-"
    return str(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _show_table(rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    from rich.console import Console

    Console().print(table_of(rows, columns))


def table_of(rows: Sequence[Row], columns: Mapping[str, str]) -> Table:
    """The rows as a table for a terminal; columns in which no row has anything are left out."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = [key for key in columns if any(row.get(key) not in (None, "") for row in rows)]
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for key in shown:
        right = any(_is_number(row.get(key)) for row in rows)
        longest_word = max(map(len, columns[key].split()))
        table.add_column(columns[key], justify="right" if right else "left", overflow="fold", min_width=longest_word)
    for row in rows:
        table.add_row(*(Text(_text(row.get(key))) for key in shown))
    return table


def _show_columns(rows: Sequence[Row], columns: Mapping[str, str]) -> None:
    cells = [[_text(row.get(key)) for key in columns] for row in rows]
    headings = [heading.upper().replace(" ", "-") for heading in columns.values()]
    widths = [max(len(line[index]) for line in [headings, *cells]) for index in range(len(headings))]
    for line in [headings, *cells]:
        sys.stdout.write("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() + "\n")
