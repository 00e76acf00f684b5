"""The journal as it is read: whole batches from its start up to an offset, and their records."""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar

from kohort.client.net.cluster import Between
from kohort.client.net.metadata import NO_TOPIC_ID
from kohort.client.net.runtime import Promise, Runtime
from kohort.cluster.journal.fences import FIRST, Author, Authors, Fence, is_fence, read_fence
from kohort.cluster.journal.place import JournalPlace, JournalUnavailable, passes
from kohort.errors import CorruptDataError, ErrorCode, KafkaError, error_for
from kohort.groups.records import Record
from kohort.journal.checked import UNREADABLE
from kohort.journal.codec import GroupRecordReader, group_of
from kohort.wire.batch import HEADER_SIZE, BatchHeader, crc_ok, parse_header
from kohort.wire.data import FetchRequest, FetchResponse, ListOffsetsRequest
from kohort.wire.records import read_pairs

FETCH_BYTES: Final = 4 << 20
"""Read in one go. Two such answers of each shard that loads are in memory, and all of a process may load at once."""
PATIENCE_MS: Final = 60_000
"""A new leader shows what is committed once its followers have told it how far they are: seconds."""
_WAIT_MS: Final = 500
_PAUSE_MS: Final = 20
"""Between questions to a broker that does not wait although it has nothing."""
_HANDED_MAX: Final = 1
"""Answers handed over to be decoded: the next one comes meanwhile."""
_LIST_BYTES: Final = 256 << 10
"""Records are handed out in lists of about so many bytes, some milliseconds of work each."""
_HIGHEST_BY_NAME: Final = 12
_EARLIEST: Final = -2
_LENGTH_AT: Final = 8
_OVERHEAD: Final = 12
_KEYS_SHOWN: Final = 20

T = TypeVar("T")
log = logging.getLogger("kohort.cluster")
_length_of = struct.Struct(">i").unpack_from


class _BeforeStart(Exception):
    """The log does not begin at offset 0 any more: somebody has had records deleted."""


class JournalReading:
    """Fetches one partition, batch after batch.

    Attributes:
        offset: of the next record to be read.
        read_bytes: so far.
    """

    def __init__(self, place: JournalPlace, fetch_bytes: int = FETCH_BYTES) -> None:
        self._place = place
        self._fetch_bytes = fetch_bytes
        self.offset = 0
        self.read_bytes = 0

    async def fetch(self) -> memoryview | None:
        """The whole batches of one answer; None: nothing new is there yet.

        Raises:
            JournalUnavailable: nothing can be read.
        """
        try:
            view = await self._persistently(self._ask_batches, "it can't be read")
        except _BeforeStart:
            self.offset = await self._persistently(self._ask_start, "its start can't be had")
            log.error(
                "%s: its records before offset %d have been deleted, which compaction does not do: groups may have "
                "lost offsets, and begin at auto.offset.reset. Topic %s needs cleanup.policy=compact alone",
                self._place,
                self.offset,
                self._place.topic.name,
            )
            return None
        end, following = _whole(view)
        if not end:
            if len(view) > 0:
                raise JournalUnavailable(f"{self._place}: a batch at offset {self.offset} came in part only")
            return None
        self.offset = following
        self.read_bytes += end
        return view[:end]

    async def up_to(self, end: int) -> memoryview:
        """The whole batches of the next answer, where what lies at `end` is known to be written.

        Raises:
            JournalUnavailable: the leader does not show it in time.
        """
        place = self._place
        until_ms = place.elapsed_ms() + PATIENCE_MS
        while (view := await self.fetch()) is None:
            if place.elapsed_ms() > until_ms:
                raise JournalUnavailable(
                    f"{place}: its leader shows nothing behind offset {self.offset - 1}, where {end} is known to be "
                    "written"
                )
            await place.cluster.runtime.sleep(_PAUSE_MS)
        return view

    async def _persistently(self, ask: Callable[[], Awaitable[T]], what: str) -> T:
        place, failures = self._place, 0
        until_ms = place.elapsed_ms() + PATIENCE_MS
        while True:
            try:
                return await ask()
            except KafkaError as error:
                if not passes(error) or place.elapsed_ms() > until_ms:
                    raise place.lost(error, what) from error
            failures += 1
            await place.wait(failures)

    async def _ask_start(self) -> int:
        place, limit = self._place, self._place.settings.answer_ms
        part = ListOffsetsRequest.ListOffsetsPartition(partition_index=place.index, timestamp=_EARLIEST)
        topic = ListOffsetsRequest.ListOffsetsTopic(name=place.topic.name, partitions=[part])
        request = ListOffsetsRequest(replica_id=-1, topics=[topic], timeout_ms=limit)
        answer = await place.cluster.send(request, await place.leader(limit), timeout_ms=limit, lane=place.lane)
        (found,) = answer.topics[0].partitions
        _check(found.error_code)
        return found.offset

    async def _ask_batches(self) -> memoryview:
        place, limit = self._place, self._place.settings.answer_ms
        part = FetchRequest.FetchPartition(
            partition=place.index, fetch_offset=self.offset, partition_max_bytes=self._fetch_bytes
        )
        topic = FetchRequest.FetchTopic(topic=place.topic.name, topic_id=place.topic.id, partitions=[part])
        request = FetchRequest(max_wait_ms=_WAIT_MS, min_bytes=1, max_bytes=self._fetch_bytes, topics=[topic])
        answer: FetchResponse = await place.cluster.send(
            Between(request, highest=_HIGHEST_BY_NAME if place.topic.id == NO_TOPIC_ID else None),
            await place.leader(limit),
            timeout_ms=limit + _WAIT_MS,
            lane=place.lane,
        )
        _check(answer.error_code)
        (found,) = answer.responses[0].partitions
        if found.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and not self.offset:
            raise _BeforeStart
        _check(found.error_code)
        return memoryview(found.records or b"")


def _check(error_code: int) -> None:
    if error_code:
        code = ErrorCode.of(error_code)
        raise error_for(code, code.text)


def _whole(view: memoryview) -> tuple[int, int]:
    """Where the whole batches end, and the offset behind them; (0, 0): there is none. The last one may be cut."""
    last, at, size = -1, 0, len(view)
    while at + HEADER_SIZE <= size:
        stop = at + _length_of(view, at + _LENGTH_AT)[0] + _OVERHEAD
        if stop > size or stop <= at:
            break
        last, at = at, stop
    return (at, parse_header(view, last).next_offset) if last >= 0 else (0, 0)


class Handover:
    """Answers on their way from whoever fetches to whoever decodes."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._views: deque[memoryview] = deque()
        self._changed: Promise[None] = Promise()

    async def put(self, view: memoryview) -> None:
        """Hand on, once there is room."""
        while len(self._views) >= _HANDED_MAX:
            await self._next()
        self._views.append(view)

    async def drained(self) -> None:
        """Wait until all of it is decoded."""
        while self._views:
            await self._next()

    async def _next(self) -> None:
        self._changed = Promise()
        await self._changed

    @property
    def first(self) -> memoryview | None:
        """What is to be decoded next."""
        return self._views[0] if self._views else None

    def decoded(self) -> None:
        """The first one is done with."""
        self._views.popleft()
        self._changed.resolve(None)


class JournalDecoding:
    """Records out of batches, with who wrote them.

    Attributes:
        authors: so far.
        left_out: whose batches are not to count.
    """

    def __init__(self, place: JournalPlace) -> None:
        self._place = place
        self._reader = GroupRecordReader()
        self.authors = Authors()
        self.left_out: frozenset[Author] = frozenset()
        self._unreadable: dict[Author, CorruptDataError] = {}

    def check(self) -> None:
        """Raises CorruptDataError if a batch of ours could not be read; whose it is shows when all is read."""
        for author, error in self._unreadable.items():
            if self.authors.covered(author):
                raise error

    def records(self, view: memoryview) -> Iterator[Sequence[Record]]:
        """The group records of whole batches, in lists.

        Raises:
            CorruptDataError: a batch can't be read.
        """
        found: list[Record] = []
        done = 0
        for header, batch in self._batches(view):
            author = header.producer_id, header.producer_epoch
            self.authors.saw(header)
            if author in self.left_out:
                self._tell_left_out(header, batch)
            else:
                self._read(header, batch, found)
            done += header.size
            if done >= _LIST_BYTES:
                yield found
                found, done = [], 0
        if found:
            yield found

    def survey(self, view: memoryview) -> None:
        """Look at who wrote, without records: fences are alone in their batches."""
        for header, batch in self._batches(view):
            self.authors.saw(header)
            if header.records_count == 1 and not header.is_control:
                for key, value, _ in read_pairs(batch, header):
                    if key is not None and is_fence(key):
                        self._take(header, read_fence(key, value))

    def _batches(self, view: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
        at, end = 0, len(view)
        while at < end:
            header = parse_header(view, at)
            if not crc_ok(view, header, at):
                raise CorruptDataError(
                    f"{self._place}: the checksum of the batch at offset {header.base_offset} does not fit: look at "
                    "the log of the broker that leads it, and at its disk"
                )
            stop = at + header.size
            yield header, view[at:stop]
            at = stop

    def _read(self, header: BatchHeader, batch: memoryview, found: list[Record]) -> None:
        if header.is_control:
            return
        reader = self._reader
        read_offset, add, known = reader.read_offset, found.append, len(found)
        try:
            for key, value, _ in read_pairs(batch, header):
                if key is None:
                    continue
                if key[:2] == b"\0\1":
                    add(read_offset(key, value, -1, -1))
                elif is_fence(key):
                    self._take(header, read_fence(key, value))
                elif (record := reader.read(key, value)) is not None:
                    add(record)
        except UNREADABLE as error:
            del found[known:]
            author = header.producer_id, header.producer_epoch
            text = f"{self._place}: the batch at offset {header.base_offset} can't be read: {error}"
            self._unreadable.setdefault(author, CorruptDataError(text))

    def _take(self, header: BatchHeader, fence: Fence) -> None:
        """Each producer id speaks for itself, and any of them may have written the first fence."""
        if fence.producer_id in (FIRST, header.producer_id):
            self.authors.take(fence)

    def _tell_left_out(self, header: BatchHeader, batch: memoryview) -> None:
        names = []
        try:
            for key, _, _ in read_pairs(batch, header):
                names.append(f"group {group_of(key)}" if key and group_of(key) is not None else repr(bytes(key or b"")))
        except UNREADABLE as error:
            names.append(str(error))
        more = " …" if len(names) > _KEYS_SHOWN else ""
        log.warning(
            "%s: the batch at offset %d of producer id %d is left out, no coordinator wrote it; keys: %s",
            self._place,
            header.base_offset,
            header.producer_id,
            ", ".join(name[:200] for name in names[:_KEYS_SHOWN]) + more,
        )
