"""Which sequences are done, said by the names of empty files in a folder: `published-17`."""

from __future__ import annotations

import os
from typing import Final

from kohort.region.files import FileCalls, names_in, remove, sync_folder

MARKS_KEPT: Final = 8
"""A listing of a folder that changes meanwhile may miss what is renewed: so many publications it may take."""
_MARK: Final = "published-"


def marks(files: FileCalls, folder: str) -> list[int]:
    """The sequences that are marked, in any order: the newest, and a few before it."""
    names = names_in(files, folder)
    return [int(end) for name in names if name.startswith(_MARK) and (end := name.removeprefix(_MARK)).isdecimal()]


def is_marked(files: FileCalls, folder: str, sequence: int) -> bool:
    """Whether the sequence is done."""
    return max(marks(files, folder), default=0) >= sequence


def mark(files: FileCalls, folder: str, sequence: int) -> None:
    """Say durably that the sequence is done. Who is late can't take back what a newer one says."""
    if not is_marked(files, folder, sequence):
        files.close(files.open(f"{folder}/{_MARK}{sequence}", os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666))
    sync_folder(files, folder)
    for old in sorted(marks(files, folder))[:-MARKS_KEPT]:
        remove(files, f"{folder}/{_MARK}{old}")


def last_marked(files: FileCalls, folder: str) -> int:
    """The last sequence that is done, for certain; 0: none yet."""
    last = max(marks(files, folder), default=0)
    if last:
        sync_folder(files, folder)
    return last
