"""`kohort log`: a check of the data folder of a stopped broker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kohort.cli.app import DONE, FAILED, UsageError, command_family
from kohort.cli.output import is_terminal, print_json, print_note, print_rows
from kohort.io.platforms import require_posix

if TYPE_CHECKING:
    from kohort.log.check import Defect, Progress

app = command_family("log", "Look at what a stopped broker keeps on the disk.")

_COLUMNS = ("partition", "file", "position", "length", "first_offset", "last_offset", "reason", "set_aside")


@app.command
def check(
    directory: Path,
    *,
    repair: bool = False,
    json: bool = False,
) -> int:
    """Check a data folder, checksums included: list what is damaged, and which records are lost.

    Exit code 0: nothing is damaged, or all was repaired. Exit code 1: something is damaged. Exit code 2: the folder is
    in use, or not a broker's. Without --repair nothing is changed.

    Args:
        directory: the data folder of a broker that is stopped.
        repair: Move damaged bytes to files beside (*.damaged), and write empty batches with the lost offsets, so that
            readers can continue. Indexes are rebuilt.
        json: Print JSON.
    """
    require_posix("kohort log check")
    from kohort.errors import InvalidInputError
    from kohort.log.check import FolderCheck, locked_folder, log_bytes
    from kohort.log.repair import repair as repaired

    try:
        with locked_folder(directory):
            with _progress(log_bytes(directory)) as progress:
                report = FolderCheck(directory, progress).run()
            done = {id(found): aside for found, aside in repaired(report.found)} if repair else {}
    except InvalidInputError as error:
        raise UsageError(error.message) from error
    rows = [_defect_row(found, done) for found in report.found]
    left = [found for found in report.found if id(found) not in done]
    if json:
        counts = {"partitions": report.partitions, "files": report.files, "bytes": report.bytes}
        print_json({"directory": str(directory), **counts, "sound": not left, "damaged": rows, "notes": report.notes})
    else:
        if rows:
            print_rows(rows, _COLUMNS, as_json=False)
        for sentence in report.notes:
            print_note(sentence)
        print_note(_sum(report.found, len(left), report.partitions, report.bytes, repair))
    return FAILED if left else DONE


def _defect_row(found: Defect, done: dict[int, Path | None]) -> dict[str, Any]:
    damage, lost = found.damage, found.lost_offsets
    aside = done.get(id(found))
    return {
        "partition": found.partition,
        "file": damage.path.name,
        "position": damage.position if found.kind == "records" else None,
        "length": damage.length,
        "first_offset": damage.first_offset if lost != 0 else None,
        "last_offset": damage.next_offset - 1 if damage.next_offset is not None and lost else None,
        "next_offset": damage.next_offset if lost != 0 else None,
        "lost": lost,
        "reason": damage.reason,
        "repaired": id(found) in done,
        "set_aside": None if aside is None else aside.name,
    }


def _sum(found: list[Defect], left: int, partitions: int, size: int, repair: bool) -> str:
    where = f"{partitions} partitions, {size} bytes"
    if not found:
        return f"{where}: sound"
    lost = sum(finding.lost_offsets or 0 for finding in found)
    more = "" if all(finding.lost_offsets is not None for finding in found) else " and more"
    text = f"{where}: {len(found)} damaged, {lost} offsets{more} can't be read"
    if not repair:
        mendable = any(finding.kind != "file" for finding in found)
        return text + ("; --repair sets what is damaged aside, and readers go on behind it" if mendable else "")
    return text + (f"; {len(found) - left} repaired, {left} can't be repaired here" if left else "; all was repaired")


@contextmanager
def _progress(total: int) -> Iterator[Progress]:
    """Show a progress bar on a terminal."""
    if not is_terminal(sys.stderr):
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("looking through"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda count: bar.advance(task, count)
