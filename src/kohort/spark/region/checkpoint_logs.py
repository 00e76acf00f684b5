"""The logs of a Spark checkpoint: the last completed batch, and the offsets of a batch.

    offsets/N    a version, a line of metadata, a line of JSON for each source; written before batch N runs
    commits/N    a version, a line of JSON; written when N's sink and state are done

Each file comes with `.N.crc`, which Hadoop's local file system checks, and writes with each new file. A file being
written is `.N.UUID.tmp`. Spark renames both files when they are complete, so a file with its final name is complete,
unless the machine lost power. Spark removes files that are `spark.sql.streaming.minBatchesToRetain` batches behind.
"""

from __future__ import annotations

import json  # not msgspec: text of other programs, with NaN and integers of any size
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from kohort.errors import CorruptDataError, InvalidInputError
from kohort.region.files import SYSTEM, FileCalls, names_in, read_file

OFFSETS: Final = "offsets"
COMMITS: Final = "commits"
NUMBER: Final = re.compile("0|[1-9][0-9]*")
_VERSION: Final = re.compile(r"v([0-9]+)")
_SOURCE: Final = re.compile(r"^[^{\"\s:]+:")
"""The text before a source's JSON in version 2 of offsets: the source's name or number."""
_OFFSETS_VERSIONS: Final = (1, 2)
_COMMITS_VERSIONS: Final = (1, 2, 3)
_NO_OFFSET: Final = "-"


def numbers(names: Iterable[str]) -> set[int]:
    """Return the names that are batch numbers, without checksums and files being written."""
    return {int(name) for name in names if NUMBER.fullmatch(name)}


def last_batch(checkpoint: str, *, files: FileCalls = SYSTEM) -> int | None:
    """Return the highest batch in `commits/` that Spark could continue after, with its files complete; None if none.

    The function lists one folder and reads three small files. It may be called while the query runs.
    """
    for number in sorted(numbers(names_in(files, f"{checkpoint}/{COMMITS}")), reverse=True):
        if is_whole(checkpoint, number, files=files):
            return number
    return None


def last_planned(checkpoint: str, *, files: FileCalls = SYSTEM) -> int | None:
    """Return the highest batch in `offsets/`, done or not; None if there is none."""
    return max(numbers(names_in(files, f"{checkpoint}/{OFFSETS}")), default=None)


def is_whole(checkpoint: str, number: int, *, files: FileCalls = SYSTEM) -> bool:
    """Return whether the logs have what Spark needs to continue after a batch: its commit, its and the last offsets."""
    try:
        commit_of(checkpoint, number, files=files)
        for batch in range(max(number - 1, 0), number + 1):
            offsets_of(checkpoint, batch, files=files)
    except (CorruptDataError, FileNotFoundError):
        return False
    return True


def offsets_of(checkpoint: str, number: int, *, files: FileCalls = SYSTEM) -> list[Any]:
    """Return the parsed end offset of each source in a batch, in arbitrary order; None for a source without one.

    Raises:
        CorruptDataError: the file is not in Spark's format.
        FileNotFoundError: there is no such file.
        InvalidInputError: a newer Spark wrote it.
    """
    path = f"{checkpoint}/{OFFSETS}/{number}"
    version, lines = _log(files, path, _OFFSETS_VERSIONS)
    if len(lines) < 2:
        raise CorruptDataError(f"{path} names no source")
    _parsed(path, lines[0])
    ends = lines[1:]
    if version > 1:
        ends = [_SOURCE.sub("", line, count=1) for line in ends]
    return [None if line == _NO_OFFSET else _parsed(path, line) for line in ends]


def commit_of(checkpoint: str, number: int, *, files: FileCalls = SYSTEM) -> dict[str, Any]:
    """Return the JSON that Spark wrote when a batch was done; raise as `offsets_of` does.

    It has `stateUniqueIds`, by operator, partition and store, when the state store's files have unique names.
    """
    path = f"{checkpoint}/{COMMITS}/{number}"
    _, lines = _log(files, path, _COMMITS_VERSIONS)
    found = _parsed(path, lines[0]) if lines else None
    if not isinstance(found, dict):
        raise CorruptDataError(f"{path} does not say what was done")
    return found


def find_source(offsets: Sequence[Any], query: str) -> Mapping[str, Any] | None:
    """Return the end offset that a kohort source wrote under its query's identity; None if there is none.

    Sources are identified by what their offsets say and never by their position: Spark orders them by its plan. A
    source that stands in two positions of the plan, as in a union with itself, is there twice, with the same end.

    Raises:
        CorruptDataError: two sources have that identity.
    """
    found = [end for end in offsets if isinstance(end, dict) and "kohort" in end and end.get("query") == query]
    if any(end != found[0] for end in found):
        raise CorruptDataError(
            f"{len(found)} sources of one checkpoint say that they are query {query}: which of them read what can't be "
            "told; use a fresh folder"
        )
    return found[0] if found else None


def _log(files: FileCalls, path: str, versions: tuple[int, ...]) -> tuple[int, list[str]]:
    """Return the version of a log's file, and the lines below it."""
    try:
        first, *lines = read_file(files, path).decode().split("\n")
    except UnicodeDecodeError as error:
        raise CorruptDataError(f"{path} is no text: {error}") from error
    version = _VERSION.fullmatch(first.strip())
    if version is None:
        raise CorruptDataError(f"{path} does not begin with a version, but with {first[:40]!r}")
    number = int(version[1])
    if number not in versions:
        raise InvalidInputError(
            f"{path} has version {number}: it was written by a later Spark than this kohort knows "
            f"(up to {versions[-1]}); go on with a kohort that knows it"
        )
    return number, [line for line in lines if line.strip()]


def _parsed(path: str, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise CorruptDataError(f"{path} has a line that is no JSON ({line[:80]!r}): {error}") from error
