"""The output of commands: tables on a terminal, plain columns in a pipe, JSON with --json.

A field has the same name in all three.
"""

from __future__ import annotations

import json  # not msgspec, which leaves characters that do not print as they are
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, TextIO

if TYPE_CHECKING:  # rich is imported where a terminal is
    from rich.table import Table

Row = Mapping[str, Any]

NAMES = {
    "group": "the group",
    "state": "the group's state, under Kafka's names; of what `doctor` looked for: ok, optional or missing",
    "type": "the group's type: Classic or Consumer",
    "protocol": "the group's protocol type: consumer, connect …",
    "assignor": "who decides which member has what",
    "coordinator": "the node id of the broker that coordinates the group",
    "epoch": "of a KIP-848 group or member",
    "members": "how many",
    "offsets": "how many are committed",
    "topic": "the topic",
    "topic_id": "its id",
    "partitions": "how many; in `describe --json` the partitions themselves",
    "replication_factor": "copies of each partition",
    "internal": "whether it is Kafka's own",
    "configs": "properties that were set for the topic",
    "partition": "the partition's number; of `log check` its folder",
    "leader": "the node id of the broker that leads the partition",
    "replicas": "node ids of the brokers that have the partition",
    "isr": "those of them that are in sync",
    "log_start": "the first offset that the partition holds",
    "log_end": "the offset that the next record will get",
    "committed": "the group's committed offset",
    "lag": "records still to be read: `log_end` less the larger of `committed` and `log_start`",
    "lost": "offsets after `committed` that the partition holds no more: retention was faster than the group",
    "time_lag": "how old the oldest unread record is, in seconds by its own timestamp; 0 where nothing is unread",
    "time_lag_exact": "whether that record was read; else `time_lag` is at most so long, or unknown",
    "status": "`OK`, `WARN`, `STALL`, `STOP` or `ERR`; `WARN` and `STALL` need several looks, as `groups watch` takes",
    "cause": "why: `no members`, `before start`, `open transaction` … [lag.md](lag.md) has all",
    "activity": "of a group: `active`, `idle`, `stopped`, `empty`, or `unknown` at the first look",
    "rate": "offsets per second by which `committed` moved over the last looks",
    "written_rate": "offsets per second by which `log_end` moved",
    "catch_up": "seconds until nothing is unread, at these rates; empty: never",
    "skew": "the largest lag of a partition divided by the mean of the group's: 1 is even; null: nothing is unread",
    "hot": "the group's partitions that get over 3 times the mean of the others: more members don't help them",
    "time": "when a look was taken; of `groups history` when the minute began, or something changed",
    "changes": "what changed since the look before: members, state, partitions, status",
    "kind": "the kind of a change",
    "rebalances": "the group's last rebalances, the newest first; null: its coordinator is not kohort's",
    "began": "when the first cause of a rebalance came, by the coordinator's clock",
    "took_s": "seconds from then until all members had their partitions; null: it is under way",
    "generation": "the generation or epoch that a rebalance led to; null for push groups",
    "downtime_s": "the longest downtime of a member or a partition, in seconds",
    "downtime_by_member": "the members with the longest downtimes, in seconds",
    "reasons": "why a rebalance began, in words of [lag.md](lag.md#rebalances)",
    "why": "the same in a sentence",
    "causes": "the causes one by one: `reason`, `member_id` and `text`",
    "causes_left_out": "further causes",
    "text": "the change in words",
    "wanted": "the members that the group should have; of `groups scale`",
    "needed": "the members that are enough for the rates that were measured; null: not measured",
    "member_rate": "offsets per second that a busy member reads; a lower bound until one was busy",
    "blocked": "partitions whose lag no member can reduce",
    "metadata": "what the committer wrote beside the offset",
    "error": "why something can't be told",
    "member_id": "the member",
    "group_instance_id": "its static id",
    "client_id": "its client's name",
    "host": "where it is; of an access rule the address it is for, * for all",
    "permission": "of an access rule: ALLOW or DENY",
    "principal": "whom an access rule is for",
    "operation": "what an access rule allows or denies",
    "resource_type": "the kind of resource of an access rule",
    "resource": "the resource of an access rule, by name",
    "pattern": "how an access rule's name is meant: LITERAL, or PREFIXED for all names that begin with it",
    "assignment": "the partitions it has",
    "subscription": "the topics it wants",
    "new": "the committed offset as it will be",
    "source_committed": "the committed offset in the cluster that it is taken from",
    "record_time": "the timestamp of the record there by which `new` was found; null: the partition has no records",
    "requested": "the offset that was asked for, where `new` is another one",
    "note": "why it is another one",
    "done": "whether the change was made; of a batch in a checkpoint whether its sink and state are done",
    "batch": "the number of a batch of a Spark query",
    "source": "the source of a Spark query: its number, or the name it was given",
    "format": "whose form offsets in a checkpoint have: kohort, or Spark's own kafka",
    "start": "where a batch begins",
    "end": "where it ends: the next offset to read",
    "starting_offsets": "the end as the option startingOffsets takes it",
    "region": "the consistent region",
    "term": "of the region's control plane: how often one took over",
    "sequence": "the last complete sequence of a region",
    "published": "the last one that all its sinks have; of a sink: that it has",
    "unpublished": "complete sequences that its sinks do not have yet, or a sink has not",
    "resets": "how often all went back since the control plane took over; in `describe --json` by cause",
    "sequence_ms": "how long the last sequence took, from its beginning until it was complete",
    "stopped": "why the region has stopped",
    "groups": "the groups that a region has",
    "member": "a member of a region, by its name",
    "phase": "what it is doing",
    "connected": "whether the control plane has a connection to it",
    "sink": "the place that a member writes to",
    "dead_letters": "bad rows of a member that went to its place of dead letters, since the control plane took over",
    "publisher": "the member that publishes in a sink; empty: none that could is there",
    "sinks": "the places that a region writes to, or has published to",
    "positions": "where the region has come to, of each partition",
    "offset": "the next offset to read",
    "what": "what `doctor` looked for",
    "found": "what it found",
    "for": "what that is for",
    "get_it": "how to get it",
    "file": "the file that is damaged",
    "position": "the byte of it at which damage begins",
    "length": "how many bytes are damaged",
    "first_offset": "the first offset that is lost",
    "last_offset": "the last one",
    "reason": "what is wrong",
    "set_aside": "the file that the damaged bytes were put in",
    "name": "of `explain`: a code of Kafka's, or the class of an error",
    "code": "its number in Kafka's protocol; null for a class",
    "class": "the class of errors in Python that has it, or its remedy",
    "retry": "whether a repetition may help without a change",
    "meaning": "what has happened",
    "remedy": "what to do",
    "page": "where the pages of a checkout have it",
}
"""The fields of rows and their meanings: the key in JSON, which is also the heading."""


def print_rows(rows: Sequence[Row], columns: Iterable[str], *, as_json: bool, empty: str | None = "nothing") -> None:
    """Print rows as a table or as JSON.

    Args:
        rows: one mapping for each row.
        columns: the keys of a table, in order. JSON has every key of a row; a terminal omits empty columns.
        as_json: print a JSON array of the rows.
        empty: printed on standard error when there are no rows; None: nothing, because an error says why.
    """
    if as_json:
        print_json(rows)
    elif not rows:
        if empty is not None:
            print_note(empty)
    elif standard_output().isatty():
        _show_table(rows, columns)
    else:
        _show_columns(rows, columns)


def print_changes(
    rows: Sequence[Row],
    columns: Iterable[str],
    refused: Container[Any],
    name_of: Callable[[Row], Any],
    *,
    as_json: bool,
) -> None:
    """Print the rows of a change that was made, with `done`. A table omits rows whose error is printed separately.

    Args:
        rows: one mapping for each object to change.
        columns: as in `print_rows`, without `done`.
        refused: the names of objects whose change was refused.
        name_of: returns a row's name among them.
        as_json: print a JSON array of all rows.
    """
    shown = rows if as_json else [row for row in rows if name_of(row) not in refused]
    if shown and getattr(sys, "stdout", None) is not None:  # where the caller closed it, the exit code is enough
        print_rows(shown, (*columns, "done"), as_json=as_json)


def print_json(value: Any) -> None:
    """Print one JSON document, indented."""
    import msgspec

    _write_json(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())


def print_json_line(value: Any) -> None:
    """Print one JSON document on one line, and flush: for continuous output."""
    import msgspec

    _write_json(msgspec.json.encode(value, enc_hook=str).decode())
    sys.stdout.flush()


def _write_json(text: str) -> None:
    out = standard_output()
    shown = printable_json(text) if out.isatty() else text
    try:
        shown.encode(out.encoding or "utf-8")
    except UnicodeEncodeError:  # an escape of the stream's own would be no JSON
        shown = "".join(char if char.isascii() else json.dumps(char)[1:-1] for char in shown)
    out.write(shown + "\n")


def standard_output() -> TextIO:
    """Return standard output.

    Raises:
        OSError: the caller closed it.
    """
    out: TextIO | None = getattr(sys, "stdout", None)
    if out is None:
        raise OSError("there is no standard output: send it to a file or to /dev/null")
    return out


def is_terminal(stream: TextIO | None) -> bool:
    """Return whether a standard stream is a terminal; one that the caller closed is none."""
    return stream is not None and stream.isatty()


def count_with_noun(count: int, what: str) -> str:
    """Return a number with its noun, such as `1 record` or `2 records`."""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def utc_text(milliseconds: int) -> str:
    """Return a time in ms since 1970 as text in UTC with milliseconds; as a number if the year has five digits."""
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError):  # after the year 9999, as microseconds that a producer took for milliseconds
        return f"{milliseconds} ms"


def print_note(text: str) -> None:
    """Print a message on standard error, apart from the output; nowhere if the caller closed it."""
    if getattr(sys, "stderr", None) is not None:  # else print() would take standard output
        print(printable(text), file=sys.stderr)


def is_confirmed(execute: bool, question: str) -> bool:
    """Return whether a previewed change is to be made: yes with --execute, else the user is asked on a terminal.

    Without a terminal the answer is no, and a message names --execute.
    """
    if execute:
        return True
    if is_terminal(sys.stdin) and is_terminal(sys.stdout):
        print(f"{printable(question)} [y/N] ", end="", file=sys.stderr, flush=True)
        return sys.stdin.readline().strip().lower() in ("y", "yes")
    print_note("nothing was changed: this was a preview; add --execute to do it")
    return False


def printable(text: str, keep: str = "") -> str:
    """Write control characters as escapes, so that foreign names and values can't control the terminal.

    Args:
        text: the text.
        keep: control characters that stay.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def printable_json(text: str) -> str:
    """Write control characters of a JSON text as JSON escapes, which do not change its meaning."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() or char in "\n\t" else json.dumps(char)[1:-1] for char in text)


def heading(key: str) -> str:
    """Return the heading of a column on a terminal, for its key in JSON."""
    return key.replace("_", " ").capitalize()


def _cell_text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if type(value) is str or type(value) is int:  # most values, of which a table may have 100,000
        return printable(str(value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, bytes):
        return printable(value.decode(errors="backslashreplace"))
    if isinstance(value, Mapping):
        cells = (f"{_cell_text(key)}={'default' if item is None else _cell_text(item)}" for key, item in value.items())
        return ",".join(cells) or "-"
    if isinstance(value, (list, tuple)):
        return ",".join(_cell_text(part) for part in value) or "-"
    return printable(str(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _show_table(rows: Sequence[Row], columns: Iterable[str]) -> None:
    from rich.console import Console

    console, keys = Console(), _with_something(rows, columns)
    if sum(_least_width(key) + _TABLE_PADDING for key in keys) >= console.width:
        _show_blocks(rows, keys, console.width)
    else:
        console.print(rich_table(rows, keys))


def _with_something(rows: Sequence[Row], columns: Iterable[str]) -> list[str]:
    return [key for key in columns if any(row.get(key) not in (None, "") for row in rows)]


_TABLE_PADDING = 2
"""Characters between two columns of a table."""


def _least_width(key: str) -> int:
    return max(map(len, heading(key).split()))


def _show_blocks(rows: Sequence[Row], keys: Sequence[str], width: int) -> None:
    """Print each cell on a line of its own, for terminals that are too narrow for a table."""
    for row in rows:
        for key in keys:
            line = f"{heading(key)}: {_cell_text(row.get(key))}"
            for begin in range(0, len(line), width):
                sys.stdout.write(line[begin : begin + width] + "\n")
        sys.stdout.write("\n")


def rich_table(rows: Sequence[Row], columns: Iterable[str]) -> Table:
    """Return the rows as a table for a terminal, without empty columns."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    shown = _with_something(rows, columns)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for key in shown:
        right = any(_is_number(row.get(key)) for row in rows)
        justify: Literal["left", "right"] = "right" if right else "left"
        table.add_column(heading(key), justify=justify, overflow="fold", min_width=_least_width(key))
    for row in rows:
        table.add_row(*(Text(_cell_text(row.get(key))) for key in shown))
    return table


def fitting_columns(
    rows: Sequence[Row], columns: Sequence[str], expendable: Iterable[str], width: int
) -> Sequence[str]:
    """Return the columns without as many expendable ones as needed to keep the table within a terminal's width.

    Args:
        rows: the rows.
        columns: the keys, in order.
        expendable: the keys of columns that may be left out, the first one first.
        width: the terminal's width in characters.
    """
    shown = _with_something(rows, columns)
    widths = {key: max(len(heading(key)), *(len(_cell_text(row.get(key))) for row in rows)) for key in shown}
    for key in expendable:
        if sum(widths.values()) + _TABLE_PADDING * len(widths) < width:
            break
        widths.pop(key, None)
    return list(widths)


def _show_columns(rows: Sequence[Row], columns: Iterable[str]) -> None:
    keys = list(columns)
    cells = [[_cell_text(row.get(key)) for key in keys] for row in rows]
    headings = [key.upper().replace("_", "-") for key in keys]
    lines = [headings, *cells]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    padded = ("  ".join(map(str.ljust, line, widths)).rstrip() + "\n" for line in lines)
    sys.stdout.write("".join(padded))
