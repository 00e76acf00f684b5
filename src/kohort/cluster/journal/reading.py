"""Reading the journal: complete batches from its start up to an offset, and their records."""

from __future__ import annotations

import logging
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, TypeVar

from kohort.client.net.cluster import Between
from kohort.client.net.metadata import NO_TOPIC_ID
from kohort.client.net.runtime import Promise
from kohort.cluster.journal.fences import FIRST, Author, Fence, JournalProducers, is_fence, read_fence
from kohort.cluster.journal.journal_partition import JournalPartition, JournalUnavailable, is_retriable_request
from kohort.cluster.journal.topic import BATCH_BYTES_MAX
from kohort.errors import CorruptDataError, ErrorCode, KafkaError, error_for
from kohort.groups.records import Record
from kohort.journal.checked import UNREADABLE
from kohort.journal.codec import GroupRecordReader, group_of_key
from kohort.wire.batch import HEADER_SIZE, BatchHeader, has_valid_crc, parse_header
from kohort.wire.data import FetchRequest, FetchResponse, ListOffsetsRequest
from kohort.wire.records import iter_key_values

FETCH_BYTES: Final = 4 << 20
"""Bytes of one fetch. A loading shard holds two such responses in memory, and all shards may load at once."""
READ_TIMEOUT_MS: Final = 60_000
"""Limit for retries. A new leader needs seconds, until its followers' fetches advance the high-water mark."""
_WAIT_MS: Final = 500
_PAUSE_MS: Final = 20
"""Pause between fetches from a broker that returns nothing and does not wait."""
_HANDED_MAX: Final = 1
"""Responses queued for decoding, while the next fetch is under way."""
_LIST_BYTES: Final = 256 << 10
"""Approximate bytes of one list of records: some milliseconds of work."""
_HIGHEST_BY_NAME: Final = 12
_EARLIEST: Final = -2
_LENGTH_AT: Final = 8
_OVERHEAD: Final = 12
_KEYS_SHOWN: Final = 20

T = TypeVar("T")
log = logging.getLogger("kohort.cluster")
_length_of = struct.Struct(">i").unpack_from


class _BeforeStart(Exception):
    """Control flow: the log does not begin at offset 0 any more, because records were deleted."""


class JournalReader:
    """A reader of one journal partition on Kafka, from offset 0, batch after batch.

    Attributes:
        offset: the offset of the next record to read.
    """

    def __init__(self, place: JournalPartition, fetch_bytes: int = FETCH_BYTES) -> None:
        self._place = place
        self._fetch_bytes = fetch_bytes
        self.offset = 0

    async def fetch(self) -> memoryview | None:
        """Fetch once, and return the complete batches of the response; None: nothing new yet.

        Raises:
            JournalUnavailable: nothing can be read.
        """
        try:
            view = await self._persistently(self._ask_batches, "it can't be read")
        except _BeforeStart:
            self.offset = await self._persistently(self._ask_start, "its start can't be had")
            log.error(
                "[journal %s] its records before offset %d have been deleted, which compaction does not do: groups may "
                "have lost offsets, and begin at auto.offset.reset. Topic %s needs cleanup.policy=compact alone",
                self._place,
                self.offset,
                self._place.topic.name,
            )
            return None
        end, following = _complete_end(view)
        if not end:
            if len(view) > 0:
                raise JournalUnavailable(f"{self._place}: a batch at offset {self.offset} came in part only")
            return None
        self.offset = following
        return view[:end]

    async def fetch_through(self, end: int) -> memoryview:
        """Fetch until a response has complete batches, and return them; a record at `end` must exist.

        Raises:
            JournalUnavailable: the leader does not return it in time.
        """
        place = self._place
        until_ms = place.clock_with_sleep_ms() + READ_TIMEOUT_MS
        while (view := await self.fetch()) is None:
            if place.clock_with_sleep_ms() > until_ms:
                raise JournalUnavailable(
                    f"{place}: its leader shows nothing behind offset {self.offset - 1}, where {end} is known to be "
                    "written"
                )
            await place.cluster.runtime.sleep(_PAUSE_MS)
        return view

    async def _persistently(self, ask: Callable[[], Awaitable[T]], what: str) -> T:
        place, failures = self._place, 0
        until_ms = place.clock_with_sleep_ms() + READ_TIMEOUT_MS
        while True:
            try:
                return await ask()
            except KafkaError as error:
                if not is_retriable_request(error) or place.clock_with_sleep_ms() > until_ms:
                    raise place.term_ending_error(error, what) from error
            failures += 1
            await place.back_off(failures)

    async def _ask_start(self) -> int:
        place, limit = self._place, self._place.settings.answer_ms
        part = ListOffsetsRequest.ListOffsetsPartition(partition_index=place.index, timestamp=_EARLIEST)
        topic = ListOffsetsRequest.ListOffsetsTopic(name=place.topic.name, partitions=[part])
        request = ListOffsetsRequest(replica_id=-1, topics=[topic], timeout_ms=limit)
        answer = await place.cluster.send(request, await place.leader(limit), timeout_ms=limit, channel=place.channel)
        (listed,) = answer.topics[0].partitions
        _check_error(listed.error_code)
        return listed.offset

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
            channel=place.channel,
        )
        _check_error(answer.error_code)
        (fetched,) = answer.responses[0].partitions
        if fetched.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and not self.offset:
            raise _BeforeStart
        _check_error(fetched.error_code)
        return memoryview(fetched.records or b"")


def _check_error(error_code: int) -> None:
    if error_code:
        code = ErrorCode.of(error_code)
        raise error_for(code, code.text)


def _complete_end(view: memoryview) -> tuple[int, int]:
    """Return the size in bytes of the complete batches in a response, and the offset after them; (0, 0): none.

    The last batch of a response may be cut off.
    """
    last, at, size = -1, 0, len(view)
    while at + HEADER_SIZE <= size:
        stop = at + _length_of(view, at + _LENGTH_AT)[0] + _OVERHEAD
        if stop > size or stop <= at:
            break
        last, at = at, stop
    return (at, parse_header(view, last).next_offset) if last >= 0 else (0, 0)


class ResponseQueue:
    """A bounded queue of responses between the fetching task and the decoder."""

    def __init__(self) -> None:
        self._views: deque[memoryview] = deque()
        self._changed: Promise[None] = Promise()

    async def queue_for_decoding(self, view: memoryview) -> None:
        """Queue a Fetch response for decoding; wait while the queue is full."""
        while len(self._views) >= _HANDED_MAX:
            await self._next()
        self._views.append(view)

    async def wait_decoded(self) -> None:
        """Wait until all queued responses are decoded."""
        while self._views:
            await self._next()

    async def _next(self) -> None:
        self._changed = Promise()
        await self._changed

    @property
    def oldest_response(self) -> memoryview | None:
        """The oldest queued response, to be decoded next; None if the queue is empty."""
        return self._views[0] if self._views else None

    def remove_decoded_response(self) -> None:
        """Remove the first response, which is decoded."""
        self._views.popleft()
        self._changed.resolve(None)


class JournalDecoding:
    """A decoder of batches, which also records their producers.

    Attributes:
        authors: the producers of the batches so far.
        left_out: the producers whose batches are skipped.
    """

    def __init__(self, place: JournalPartition) -> None:
        self._place = place
        self._reader = GroupRecordReader()
        self.authors = JournalProducers()
        self.left_out: frozenset[Author] = frozenset()
        self._unreadable: dict[Author, CorruptDataError] = {}

    def raise_if_unreadable(self) -> None:
        """Raise CorruptDataError if a coordinator's batch could not be read.

        The producer of a batch is known to be a coordinator only when all fences have been read.
        """
        for author, error in self._unreadable.items():
            if self.authors.is_coordinator(author):
                raise error

    def decode_records(self, view: memoryview) -> Iterator[Sequence[Record]]:
        """Return the group records of complete batches, in lists.

        Raises:
            CorruptDataError: a batch can't be read.
        """
        records: list[Record] = []
        done = 0
        for header, batch in self._batches(view):
            author = header.producer_id, header.producer_epoch
            self.authors.record_batch(header)
            if author in self.left_out:
                self._log_left_out(header, batch)
            else:
                self._read_records(header, batch, records)
            done += header.size
            if done >= _LIST_BYTES:
                yield records
                records, done = [], 0
        if records:
            yield records

    def record_producers(self, view: memoryview) -> None:
        """Record the producers and fences of complete batches without decoding records; a fence has its own batch."""
        for header, batch in self._batches(view):
            self.authors.record_batch(header)
            if header.records_count == 1 and not header.is_control:
                self._survey_batch(header, batch)

    def _survey_batch(self, header: BatchHeader, batch: memoryview) -> None:
        try:
            for key, value, _ in iter_key_values(batch, header, BATCH_BYTES_MAX):
                if key is not None and is_fence(key):
                    self._record_fence(header, read_fence(key, value))
        except UNREADABLE as error:
            self._note_unreadable(header, error)

    def _batches(self, view: memoryview) -> Iterator[tuple[BatchHeader, memoryview]]:
        at, end = 0, len(view)
        while at < end:
            header = parse_header(view, at)
            if not has_valid_crc(view, header, at):
                raise CorruptDataError(
                    f"{self._place}: the checksum of the batch at offset {header.base_offset} does not fit: look at "
                    "the log of the broker that leads it, and at its disk"
                )
            stop = at + header.size
            yield header, view[at:stop]
            at = stop

    def _read_records(self, header: BatchHeader, batch: memoryview, records: list[Record]) -> None:
        if header.is_control:
            return
        reader = self._reader
        read_offset, add, known = reader.read_offset, records.append, len(records)
        try:
            for key, value, _ in iter_key_values(batch, header, BATCH_BYTES_MAX):
                if key is None:
                    continue
                if key[:2] == b"\0\1":
                    add(read_offset(key, value, -1, -1))
                elif is_fence(key):
                    self._record_fence(header, read_fence(key, value))
                elif (record := reader.decode_record(key, value)) is not None:
                    add(record)
        except UNREADABLE as error:
            del records[known:]
            self._note_unreadable(header, error)

    def _note_unreadable(self, header: BatchHeader, error: Exception) -> None:
        author = header.producer_id, header.producer_epoch
        text = f"{self._place}: the batch at offset {header.base_offset} can't be read: {error}"
        self._unreadable.setdefault(author, CorruptDataError(text))

    def _record_fence(self, header: BatchHeader, fence: Fence) -> None:
        """Record a fence that was read, if its own producer wrote it. Any producer may have written the first fence."""
        if fence.producer_id in (FIRST, header.producer_id):
            self.authors.record_fence(fence)

    def _log_left_out(self, header: BatchHeader, batch: memoryview) -> None:
        names = []
        try:
            for key, _, _ in iter_key_values(batch, header, BATCH_BYTES_MAX):
                names.append(
                    f"group {group_of_key(key)}" if key and group_of_key(key) is not None else repr(bytes(key or b""))
                )
        except UNREADABLE as error:
            names.append(str(error))
        more = " …" if len(names) > _KEYS_SHOWN else ""
        log.warning(
            "[journal %s] skipped the batch at offset %d of producer id %d, because no coordinator wrote it; keys: %s",
            self._place,
            header.base_offset,
            header.producer_id,
            ", ".join(name[:200] for name in names[:_KEYS_SHOWN]) + more,
        )
