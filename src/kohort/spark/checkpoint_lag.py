"""The positions of Spark queries that are members of no group, from their checkpoints, for the reader of lag.

A checkpoint is only read. It lies in a folder, or in an object store.

| file | what it says |
|---|---|
| `commits/N` | batch N is done |
| `offsets/N`, a line for each source | where batch N ends; kohort's source also says where it starts |
| `sources/I/0` | where batch 0 of Spark's own Kafka source starts |

A query's position is the end of its last finished batch. What a query reads again after a crash counts as unread.

Whoever writes a checkpoint may put anything there. So sizes are bounded, positions are checked, links are not followed,
and no error quotes a file.
"""

from __future__ import annotations

import errno
import json  # not msgspec: text of other programs
import os
import re
import stat
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Final, Protocol

from kohort.client.admin.values import GroupDescription
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import (
    CorruptDataError,
    InvalidInputError,
    KafkaError,
    NotAuthorizedError,
    NotFoundError,
    RetriableError,
)
from kohort.ids import TopicPartition
from kohort.lag.snapshot import GroupReading
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source.checkpoint_lines import OffsetLogFile, OffsetLogLine
from kohort.spark.source.kafka_offsets import is_kafka_offset, parse_initial_offsets, parse_kafka_offset

GROUP_TYPE: Final = "Spark"
"""The type of a query beside those of groups."""
CHECKPOINTS_AT_ONCE: Final = 8
READ_TIMEOUT_S: Final = 5.0
"""The limit for all checkpoints of a read, half of what a read of a cluster may take. One on a dead network drive may
hang forever."""
STORE_TIMEOUT: Final = "5s"
"""The limit of a request to an object store; a read has a few for each checkpoint."""
FILE_BYTES_MAX: Final = 8 << 20
"""The most bytes of a file that are read. An offset log of 200,000 partitions has 3 MB as Spark's source writes it, and
8 MB as kohort's does. Parsed, 8 MiB of hostile JSON take 200 MB."""
NAMES_MAX: Final = 100_000
"""The most names of a folder that are read. Spark keeps about 100 batches (`minBatchesToRetain`)."""
SOURCES_MAX: Final = 100
"""The most sources of a query. Each that reads Kafka is a row set of its own, with its own metrics."""
POSITIONS_MAX: Final = 200_000
"""The most partitions of a query: as many as a large cluster has."""
GROUP_CHARS_MAX: Final = 249
"""The longest name of a group that is shown beside a position; Kafka bounds those of topics so."""
_HEAD_LINES: Final = 2
_TOPIC: Final = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_SOURCE: Final = re.compile(r"[a-zA-Z0-9_-][a-zA-Z0-9._-]{0,99}")
_VERSION: Final = re.compile(rb"v[0-9]+")
_BATCH: Final = re.compile(r"0|[1-9][0-9]{0,17}", re.ASCII)
_NO_LINKS_OR_PIPES: Final[int] = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""A link could show any file of the reader's user; the opening of a pipe would wait for its writer."""
_LOCAL: Final = re.compile(r"file:(?://)?(?=/)", re.IGNORECASE)
_SCHEME: Final = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_STORES: Final = ("s3://", "s3a://", "gs://", "az://")

Positions = dict[TopicPartition, int]


class CheckpointFiles(Protocol):
    """Read access to the files of one checkpoint."""

    place: str

    def list_names(self, folder: str) -> list[str]:
        """Return the names in a folder. Raises NotFoundError if a folder that Spark always makes is missing."""

    def read_file(self, path: str) -> bytes | None:
        """Return a file's content; None if there is none."""


class LocalFolderFiles:
    """The files of a query's checkpoint in a local folder."""

    def __init__(self, folder: str) -> None:
        self.place = folder.rstrip("/") or folder

    def list_names(self, folder: str) -> list[str]:
        """Return the names in a folder.

        Raises:
            NotFoundError: There is no such folder.
            NotAuthorizedError: It may not be read.
            CorruptDataError: It has more than `NAMES_MAX` names.
        """
        try:
            with os.scandir(f"{self.place}/{folder}") as entries:
                names = [entry.name for entry in islice(entries, NAMES_MAX + 1)]
        except (FileNotFoundError, NotADirectoryError):
            raise NotFoundError(
                f"{self.place} has no folder {folder}: it is no checkpointLocation of a query, or not all of one"
            ) from None
        except OSError as error:
            raise _unreadable(f"{self.place}/{folder}", error) from error
        return _bounded(f"{self.place}/{folder}", names)

    def read_file(self, path: str) -> bytes | None:
        """Return a file's content; None if there is none.

        Raises:
            NotAuthorizedError: It may not be read.
            CorruptDataError: It is larger than `FILE_BYTES_MAX`, or a link, a pipe or a folder.
        """
        found = f"{self.place}/{path}"
        try:
            with open(found, "rb", opener=lambda name, flags: os.open(name, flags | _NO_LINKS_OR_PIPES)) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise CorruptDataError(f"{found} is no file")
                content = file.read(FILE_BYTES_MAX + 1)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise CorruptDataError(f"{found} is a link, which is not followed") from None
            if error.errno in (errno.EISDIR, errno.ENXIO):
                raise CorruptDataError(f"{found} is no file") from None
            raise _unreadable(found, error) from error
        if len(content) > FILE_BYTES_MAX:
            raise _too_large(found)
        return content


def _bounded(path: str, names: list[str]) -> list[str]:
    if len(names) > NAMES_MAX:
        raise CorruptDataError(f"{path} has more than {NAMES_MAX} names")
    return names


def _too_large(path: str) -> CorruptDataError:
    return CorruptDataError(f"{path} has more than {FILE_BYTES_MAX} bytes")


def _unreadable(path: str, error: OSError) -> KafkaError:
    if error.errno in (errno.EACCES, errno.EPERM):
        return NotAuthorizedError(f"{path} may not be read")
    return RetriableError(f"{path} can't be read: {error.strerror}")


class ObjectStoreFiles:
    """A checkpoint in an object store, which has no empty folders. Credentials come from the environment."""

    def __init__(self, url: str) -> None:
        from kohort.region.sinks.object_store import ObjectStore

        self._store = ObjectStore(url, {"timeout": STORE_TIMEOUT})
        self.place = self._store.url

    def list_names(self, folder: str) -> list[str]:
        """Return the names in a folder.

        Raises:
            NotFoundError: There is no such bucket.
            NotAuthorizedError: It may not be read.
            RetriableError: The store does not answer.
            CorruptDataError: It has more than `NAMES_MAX` names.
        """
        try:
            names = list(islice((name for page in self._store.list_pages(folder) for name in page), NAMES_MAX + 1))
        except FileNotFoundError:
            raise NotFoundError(f"{self.place}: there is no such bucket") from None
        return _bounded(f"{self.place}/{folder}", names)

    def read_file(self, path: str) -> bytes | None:
        """Return an object's content; None if there is none.

        Raises:
            NotAuthorizedError: It may not be read.
            RetriableError: The store does not answer.
            CorruptDataError: It is larger than `FILE_BYTES_MAX`.
        """
        try:
            content = self._store.read_small_object(path, FILE_BYTES_MAX)
        except FileNotFoundError:
            return None
        if content is None:
            raise _too_large(f"{self.place}/{path}")
        return content


def checkpoint_files(path: str) -> CheckpointFiles:
    """Return the files of a checkpoint, by a folder's path or an object store's URL.

    Raises:
        InvalidInputError: The URL has a scheme that can't be read.
    """
    if path.lower().startswith(_STORES):
        return ObjectStoreFiles(path)
    local = _LOCAL.sub("", path, count=1)
    if _SCHEME.match(local):
        raise InvalidInputError(f"{path}: give a folder, or a URL that begins with {', '.join(_STORES)}")
    return LocalFolderFiles(local)


class SparkCheckpoints:
    """The checkpoints of Spark queries whose positions are read for lag: a function for `LagReader.read_others`.

    Args:
        given: PATH or NAME=PATH of each checkpoint; a URL instead of a path is possible. Without a name, the last part
            of the path is the name.

    Raises:
        InvalidInputError: A path is empty or has an unknown scheme, or two have one name.
    """

    def __init__(self, given: Sequence[str]) -> None:
        self._files: dict[str, CheckpointFiles] = {}
        self._changed = threading.Condition()
        self._under_way: set[str] = set()
        self._is_closed = False
        for text in given:
            name, equals, path = text.partition("=")
            if not equals or "/" in name or "\\" in name:
                name, path = "", text
            if not path:
                raise InvalidInputError(f"{text}: name the checkpointLocation of a query")
            files = checkpoint_files(path)
            name = name or files.place.rsplit("/", 1)[-1]
            if name in ("", ".", ".."):
                name = Path(files.place).resolve().name
            if name in self._files:
                raise InvalidInputError(f"two checkpoints have the name {name}: give NAME=PATH")
            self._files[name] = files

    def __call__(self) -> dict[str, GroupReading | KafkaError]:
        """Read all checkpoints; return the position of each query, or why it could not be read.

        A checkpoint that takes longer than `READ_TIMEOUT_S` gets an error instead. Later calls do not read it again
        until that read has ended.
        """
        found: dict[str, Mapping[str, GroupReading | KafkaError]] = {}
        with self._changed:
            waiting = deque(name for name in self._files if name not in self._under_way)
        asked = len(waiting)
        for _ in range(min(CHECKPOINTS_AT_ONCE, asked)):
            # Not a pool: the interpreter waits for a pool's threads when it ends.
            threading.Thread(
                target=self._read_some, args=(waiting, found), name="kohort-checkpoint", daemon=True
            ).start()
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed or len(found) == asked, READ_TIMEOUT_S)
            waiting.clear()
            read = dict(found)
        return {part: reading for name in self._files for part, reading in (read.get(name) or self._late(name)).items()}

    def close(self) -> None:
        """End a waiting call without waiting for the reads in progress, whose threads are abandoned."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _read_some(self, waiting: deque[str], found: dict[str, Mapping[str, GroupReading | KafkaError]]) -> None:
        while True:
            with self._changed:
                if not waiting:
                    return
                name = waiting.popleft()
                self._under_way.add(name)
            reading = _read_or_error(name, self._files[name])
            with self._changed:
                self._under_way.discard(name)
                found[name] = reading
                self._changed.notify_all()

    def _late(self, name: str) -> Mapping[str, GroupReading | KafkaError]:
        return {name: RetriableError(f"{self._files[name].place} was not read in time, {READ_TIMEOUT_S:g} s")}


def _read_or_error(name: str, files: CheckpointFiles) -> Mapping[str, GroupReading | KafkaError]:
    try:
        return read_checkpoint(name, files)
    except KafkaError as error:
        return {name: error}
    except Exception as error:  # noqa: BLE001 (text of any form makes a parser raise nearly anything)
        kind = type(error).__name__  # its text may quote a file
        return {name: CorruptDataError(f"{files.place} has a file in no form that Spark writes ({kind})")}


def read_checkpoint(name: str, files: CheckpointFiles) -> dict[str, GroupReading]:
    """Return the positions in a query's checkpoint, under its name; with several sources under NAME/SOURCE for each.

    Sources that read no Kafka topic are left out.

    Raises:
        NotFoundError: A folder is missing, or no source of the query reads Kafka.
        CorruptDataError: A file that is needed is missing, or not written to its end.
        InvalidInputError: A later Spark or kohort wrote the checkpoint.
        KafkaError: The files can't be read.
    """
    done = _numbers(files.list_names("commits"))  # first: Spark writes offsets/N before commits/N
    planned = _numbers(files.list_names("offsets"))
    if not planned:
        raise NotFoundError(f"{files.place} has no batches: name the checkpointLocation of a query that has run")
    batch = done[-1] if done else -1
    if batch < 0 and planned[0] > 0:
        raise CorruptDataError(
            f"{files.place}/commits is empty, and the first batch of offsets is {planned[0]}: which batches are done "
            "is not known"
        )
    if batch < 0 and planned[-1] > 0:
        raise CorruptDataError(f"{files.place}/commits is empty, but batch {planned[-1]} was begun after others")
    if batch >= 0:
        _check_commit(files, batch)
    log = _read_log(files, max(batch, 0))
    following = _read_following(files, batch + 1) if batch + 1 in planned else {}
    found = {
        line.name: reading
        for line in log.sources
        if (reading := _read_source(files, batch, line, following.get(line.name))) is not None
    }
    if not found:
        raise NotFoundError(f"{files.place}: no source of the query reads Kafka, or none has offsets yet")
    _check_positions(f"{files.place}/offsets/{max(batch, 0)}", [positions for positions, _ in found.values()])
    names = {source: name if len(log.sources) == 1 else f"{name}/{source}" for source in found}
    return {
        names[source]: GroupReading(
            GroupDescription(names[source], GROUP_TYPE, "Unknown", "spark", "", ()),
            members_known=False,
            committed={tp: OffsetAndMetadata(offset, metadata) for tp, offset in positions.items()},
            batch=batch,
        )
        for source, (positions, metadata) in found.items()
    }


def _numbers(names: Sequence[str]) -> list[int]:
    """Return the batch numbers among file names, without temporary files and checksums, which begin with a dot."""
    return sorted(int(name) for name in names if _BATCH.fullmatch(name))


def _check_positions(path: str, sources: Sequence[Positions]) -> None:
    """Check that the positions are possible offsets: impossible ones would break requests and metrics of all groups.

    Raises:
        CorruptDataError: A position can't be an offset of a log, or there are too many positions.
    """
    if sum(map(len, sources)) > POSITIONS_MAX:
        raise CorruptDataError(f"{path} has more than {POSITIONS_MAX} partitions")
    for topic, partition, offset in ((*tp, offset) for positions in sources for tp, offset in positions.items()):
        if not _TOPIC.fullmatch(topic) or topic in (".", ".."):
            raise CorruptDataError(f"{path} names a topic that no cluster can have")
        if not 0 <= partition < 1 << 31:
            raise CorruptDataError(f"{path} names a partition that no topic can have")
        if not 0 <= offset < 1 << 63:
            raise CorruptDataError(f"{path} names an offset that no partition can have")


def _check_commit(files: CheckpointFiles, batch: int) -> None:
    path = f"commits/{batch}"
    raw = _needed(files, path)
    version, newline, body = raw.partition(b"\n")
    try:
        json.loads(body or b"{}")
    except ValueError:
        newline = b""
    if not newline or not _VERSION.fullmatch(version):
        raise _half_written(files, path)
    if version not in (b"v1", b"v2"):
        raise InvalidInputError(f"{files.place}/{path} has a version that this kohort does not know: a later Spark's")


def _read_log(files: CheckpointFiles, batch: int) -> OffsetLogFile:
    """Read a file of the offset log, and check that it is complete."""
    path = f"offsets/{batch}"
    raw = _needed(files, path)
    if raw.count(b"\n") < 2:
        raise _half_written(files, path)
    log = _parsed_log(files, path, raw)
    before = files.read_file(f"offsets/{batch - 1}") if batch else None
    names = set() if before is None else {line.name for line in _parsed_log(files, path, before).sources}
    is_cut = any(line.text.startswith("{") and line.offset is None for line in log.sources)
    if is_cut or not log.sources or names - {line.name for line in log.sources}:
        raise _half_written(files, path)
    return log


def _parsed_log(files: CheckpointFiles, path: str, raw: bytes) -> OffsetLogFile:
    """Parse a file of the offset log, with errors that quote nothing of it."""
    if raw.count(b"\n") > SOURCES_MAX + _HEAD_LINES:
        raise CorruptDataError(f"{files.place}/{path} has more than {SOURCES_MAX} sources")
    try:
        log = OffsetLogFile.parse(path, raw)
    except CorruptDataError:
        raise CorruptDataError(f"{files.place}/{path} is not an offset log of Spark") from None
    except InvalidInputError:
        raise InvalidInputError(
            f"{files.place}/{path} has a version that this kohort does not know: a later Spark wrote it, or it is not "
            "an offset log"
        ) from None
    if not all(_SOURCE.fullmatch(line.name) for line in log.sources):
        raise CorruptDataError(f"{files.place}/{path} has what is no name of a source")
    return log


def _read_following(files: CheckpointFiles, batch: int) -> dict[str, OffsetLogLine]:
    """Return the source lines of a batch that is planned but not done; none while Spark still writes the file."""
    try:
        return {line.name: line for line in _read_log(files, batch).sources}
    except CorruptDataError:
        return {}


def _read_source(
    files: CheckpointFiles, batch: int, line: OffsetLogLine, following: OffsetLogLine | None
) -> tuple[Positions, str] | None:
    """Return a source's position with a text about the batch; None if it reads no Kafka topic or has no offsets yet."""
    offset, said = line.offset, f"batch {batch}" if batch >= 0 else "no batch is done"
    if is_kafka_offset(offset):
        return (parse_kafka_offset(offset) if batch >= 0 else _initial(files, line.name)), said
    if not isinstance(offset, dict) or "kohort" not in offset:
        return None
    found = _batch_offset(files, offset)
    if isinstance(found.group, str) and found.group.isprintable() and 0 < len(found.group) <= GROUP_CHARS_MAX:
        said += f" of a member of {found.group}"
    if following is not None and isinstance(following.offset, dict) and "kohort" in following.offset:
        found, batch = _batch_offset(files, following.offset), -1
    if batch >= 0:
        return found.end_offsets(), said
    return {tp: span.start for tp, span in found.spans.items()}, said


def _batch_offset(files: CheckpointFiles, found: Mapping[str, Any]) -> BatchOffset:
    try:
        return BatchOffset.from_json(found)
    except InvalidInputError:
        raise InvalidInputError(
            f"{files.place} has offsets of a form that this kohort does not know: a later one wrote them"
        ) from None


def _initial(files: CheckpointFiles, source: str) -> Positions:
    path = f"sources/{source}/0"
    raw = _needed(files, path)
    try:
        return parse_initial_offsets(raw)
    except CorruptDataError:
        raise CorruptDataError(f"{files.place}/{path} has no initial offsets of Spark's Kafka source") from None


def _needed(files: CheckpointFiles, path: str) -> bytes:
    content = files.read_file(path)
    if content is None:
        raise CorruptDataError(f"{files.place}/{path} is missing")
    return content


def _half_written(files: CheckpointFiles, path: str) -> CorruptDataError:
    return CorruptDataError(f"{files.place}/{path} is not written to its end; the last finished batch is not known")
