"""One term of a journal on Kafka: fence, read up to the fence, then append until something ends the term.

The order matters, because the partition's log is one sequence. All batches of an earlier owner lie before the fence,
and are read. Behind the fence Kafka refuses that owner's epoch. The earlier owner acknowledged only what Kafka had
written without an error, so all of that lies before the fence. A coordinator that read first, or looked up the end
offset before the fence, would miss what comes between.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kohort.client.net.cluster import Between
from kohort.client.net.metadata import NO_TOPIC_ID
from kohort.client.net.runtime import Promise
from kohort.cluster.journal.fences import EPOCH_LAST, FIRST, Author, Fence, make_fence
from kohort.cluster.journal.journal_partition import (
    SKIP,
    UNFENCED_RECORDS,
    JournalPartition,
    JournalRefused,
    JournalUnavailable,
    is_retriable_request,
)
from kohort.cluster.journal.reading import JournalDecoding, JournalReader, ResponseQueue
from kohort.errors import CorruptDataError, ErrorCode, FencedError, KafkaError, error_for
from kohort.groups.records import Record
from kohort.journal.protocol import Owner
from kohort.journal.sealing import encode_single_record
from kohort.wire.batch import seal_batch
from kohort.wire.data import ProduceRequest, ProduceResponse
from kohort.wire.transactions import InitProducerIdRequest

# -- Batches of one producer id and epoch, one at a time, each written exactly once.
#
# A retried batch keeps its sequence number, by which the leader recognizes it. Retries end after `REPEAT_MS`, by a
# clock that also runs while the machine sleeps. The reason: a leader forgets producers that were silent for
# `producer.id.expiration.ms`. It would then accept an old epoch's batch as a new producer's first. For the same reason
# nothing is sent at all when the last batch was acknowledged long ago: the process was suspended.

REPEAT_MS: Final = 30_000
APPEND_EVERY_MS: Final = 300_000
"""An idle writer appends this often all the same, or leaders would forget the producer."""
SILENCE_MAX_MS: Final = 3 * APPEND_EVERY_MS
"""A writer silent for longer was suspended; 1/4 of the shortest `producer.id.expiration.ms` that is accepted."""
_TRANSACTION_TIMEOUT_MS: Final = 60_000
"""Below every broker's limit; no transaction is ever begun."""
_HIGHEST_BY_NAME: Final = 12
_OWN_ID_SINCE: Final = 3
_SEQUENCES: Final = 2**31
_ACKS_ALL: Final = -1
_BROKER_SHARE: Final = 0.8
"""The share of the request timeout that the Produce request allows for replication."""
_NOT_THERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class TermIdentity:
    """A producer id and epoch, and when they were requested, by the clock of `JournalPartition.clock_with_sleep_ms`."""

    producer_id: int
    epoch: int
    asked_ms: float


async def bump_producer_epoch(place: JournalPartition, own: TermIdentity | None = None) -> TermIdentity:
    """Get the next producer epoch of the shard's transactional id.

    Args:
        place: the journal's partition.
        own: this owner's identity, which fails with FencedError if another got an epoch since. None: depose any owner.

    Raises:
        FencedError, JournalUnavailable: Kafka does not give one.
    """
    cluster, settings = place.cluster, place.settings
    asked_ms = 0.0

    async def new_epoch_once() -> TermIdentity:
        nonlocal asked_ms
        asked_ms = place.clock_with_sleep_ms()
        request = InitProducerIdRequest(
            transactional_id=place.transactional_id,
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
            producer_id=-1 if own is None else own.producer_id,
            producer_epoch=-1 if own is None else own.epoch,
        )
        wanted = Between(request, lowest=0 if own is None else _OWN_ID_SINCE)
        answer = await cluster.send(wanted, place.to_coordinator, timeout_ms=settings.answer_ms, channel=place.channel)
        if answer.error_code:
            code = ErrorCode.of(answer.error_code)
            if code in _NOT_THERE:
                cluster.forget_coordinator(place.to_coordinator)
            raise error_for(code, code.text)
        return TermIdentity(answer.producer_id, answer.producer_epoch, asked_ms)

    what = f"no producer epoch of transactional id {place.transactional_id}"
    try:
        return await cluster.retry_call(new_epoch_once, what, REPEAT_MS)
    except KafkaError as error:
        raise place.term_ending_error(error, what) from error


@dataclass(frozen=True, slots=True)
class AcknowledgedAppend:
    """The offset and send time of a batch that Kafka has acknowledged.

    Attributes:
        offset: the offset of its first record.
        sent_ms: when it was first sent, by the runtime's monotonic clock. The time that the machine slept since is
            subtracted, so that `now_ms - sent_ms` includes it.
    """

    offset: int
    sent_ms: int


class JournalWriter:
    """A writer under one producer identity, one batch at a time.

    Attributes:
        identity: the identity of the next batch.
        expected: the offset that the batch must get; None: any. Another offset means that somebody else writes.
    """

    def __init__(self, place: JournalPartition, identity: TermIdentity) -> None:
        self._place = place
        self.expected: int | None = None
        self._sequence = 0
        self._first_ms: float | None = None
        self.adopt_identity(identity)

    def adopt_identity(self, identity: TermIdentity) -> None:
        """Continue writing under another producer epoch, with sequence numbers from 0."""
        self.identity = identity
        self._sequence = 0
        self._fresh_until_ms = identity.asked_ms + REPEAT_MS

    async def write(self, payload: bytes, count: int, now_ms: int) -> AcknowledgedAppend:
        """Append a batch to the journal's partition, and wait until Kafka acknowledges it.

        Args:
            payload: its records, encoded.
            count: the number of records.
            now_ms: wall clock; the records' timestamp unless the topic sets its own.

        Raises:
            FencedError: a later epoch has written here.
            JournalUnavailable: it is unknown whether the batch was written, and it must not be sent again.
        """
        identity = self.identity
        batch = seal_batch(
            payload,
            count,
            (count - 1, now_ms, now_ms),
            {
                "producer_id": identity.producer_id,
                "producer_epoch": identity.epoch,
                "base_sequence": self._sequence,
            },
        )
        self._first_ms = None
        offset = await self._deliver(batch)
        place = self._place
        answered_ms = place.clock_with_sleep_ms()
        first_ms = answered_ms if self._first_ms is None else self._first_ms
        if answered_ms - first_ms > REPEAT_MS:
            raise JournalUnavailable(f"{place}: an append was answered after {(answered_ms - first_ms) / 1000:.0f} s")
        if self.expected is not None and offset != self.expected:
            raise JournalUnavailable(
                f"{place}: an append was given offset {offset} in place of {self.expected}: somebody else writes to "
                f"topic {place.topic.name}. Let the coordinators' user alone WRITE to it"
            )
        self._sequence = (self._sequence + count) % _SEQUENCES
        self._fresh_until_ms = first_ms + SILENCE_MAX_MS
        if self.expected is not None:
            self.expected += count
        return AcknowledgedAppend(offset, int(place.cluster.runtime.now_ms - (answered_ms - first_ms)))

    async def _deliver(self, batch: bytes) -> int:
        """Send the same batch until it is acknowledged, and return its offset."""
        place, failures = self._place, 0
        last: KafkaError | None = None
        while True:
            self._check_sendable(last)
            try:
                return await self._send_produce(batch)
            except KafkaError as error:
                if isinstance(error, FencedError) or not is_retriable_request(error):
                    raise place.term_ending_error(error, "an append was refused") from error
                last = error
            failures += 1
            await place.back_off(failures)
            place.check_topic_id()

    def _check_sendable(self, last: KafkaError | None = None) -> None:
        """Check that a batch may be sent now, or sent again.

        Raises:
            JournalUnavailable: it may not be sent.
        """
        now_ms = self._place.clock_with_sleep_ms()
        if self._first_ms is None:
            late_ms = now_ms - self._fresh_until_ms
            why = "this process stood still"
        else:
            late_ms = now_ms - self._first_ms - REPEAT_MS
            why = f"an append was not answered within {REPEAT_MS // 1000} s"
        if late_ms > 0:
            reason = "" if last is None else f": {last.message or last.code.text}"
            raise JournalUnavailable(f"{self._place}: {why}{reason}")

    def _leaving(self) -> None:
        self._check_sendable()
        if self._first_ms is None:
            self._first_ms = self._place.clock_with_sleep_ms()

    async def _send_produce(self, batch: bytes) -> int:
        place, limit = self._place, self._place.settings.answer_ms
        part = ProduceRequest.PartitionProduceData(index=place.index, records=batch)
        topic = ProduceRequest.TopicProduceData(name=place.topic.name, topic_id=place.topic.id, partition_data=[part])
        request = ProduceRequest(acks=_ACKS_ALL, timeout_ms=int(limit * _BROKER_SHARE), topic_data=[topic])
        answer = await place.cluster.send(
            Between(request, highest=_HIGHEST_BY_NAME if place.topic.id == NO_TOPIC_ID else None),
            await place.leader(limit),
            timeout_ms=limit,
            channel=place.channel,
            leaving=self._leaving,
        )
        return self._offset(answer)

    def _offset(self, answer: ProduceResponse) -> int:
        try:
            (produced,) = answer.responses[0].partition_responses
        except (IndexError, ValueError):
            raise JournalUnavailable(f"{self._place}: the answer to an append says nothing of it") from None
        if produced.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER and self.expected is not None:
            return self.expected
        if produced.error_code:
            code = ErrorCode.of(produced.error_code)
            raise error_for(code, produced.error_message or code.text)
        return produced.base_offset


NEW_EPOCH_EVERY_MS: Final = 86_400_000
"""Batches without a transaction do not keep a transactional id alive: Kafka changes the producer id after a week."""
RENEW_AGAIN_MS: Final = 60_000
"""Pause after a renewal that failed: Kafka may refuse it at once, as it does without the right to WRITE."""
_SURVEY_BYTES: Final = 1 << 20
"""Bytes of one fetch that is decoded at once, without a break for other tasks."""
_GLANCE_BYTES: Final = 64 << 10
_NO_TIME: Final = -1
"""The records' timestamp when the topic sets its own (LogAppendTime)."""

log = logging.getLogger("kohort.cluster")


@dataclass(slots=True)
class JournalMetrics:
    """The counters of a shard's journal on Kafka.

    Attributes:
        producer_id: the producer id of the newest term.
        epoch: the producer epoch of the newest term.
        fence_offset: the offset of its fence.
        fences: terms begun here.
        appends: acknowledged appends, empty ones too.
        load_ms: the duration of the last load.
        acknowledged_ms: when the newest acknowledged append was sent, by the monotonic clock.
    """

    producer_id: int = -1
    epoch: int = -1
    fence_offset: int = -1
    fences: int = 0
    appends: int = 0
    load_ms: float = 0.0
    acknowledged_ms: int = 0


Body: TypeAlias = tuple[bytes, int]
"""The encoded records of one batch, and their number."""


@dataclass(frozen=True, slots=True)
class AppendRequest:
    """An owner's request to write batches; without batches it only proves ownership."""

    token: int
    bodies: Sequence[Body]
    now_ms: int


class JournalTerm:
    """One term of a `KafkaJournal`, which has one at a time.

    `run` is a task of the client's core; the owner calls the other methods.

    Attributes:
        error: the reason why the term has ended, or None.
        loaded: whether all records have been handed out.
    """

    def __init__(self, place: JournalPartition, owner: Owner, metrics: JournalMetrics) -> None:
        self._place = place
        self._owner = owner
        self._metrics = metrics
        self._handover = ResponseQueue()
        self._decoding = JournalDecoding(place)
        self._wanted: AppendRequest | None = None
        self._news: Promise[None] = Promise()
        self._renewed: TermIdentity | Exception | None = None
        self._renewing = False
        self._renew_again_ms = 0.0
        self._now_ms = _NO_TIME
        self.error: Exception | None = None
        self.loaded = False

    # -- the owner's side

    def records(self) -> Iterator[Sequence[Record] | None]:
        """Return the records to load, with None while there are none yet, as `Journal.begin_term` says."""
        while True:
            if self.error is not None:
                raise self.error
            view = self._handover.oldest_response
            if view is not None:
                yield from self._decoding.decode_records(view)
                self._handover.remove_decoded_response()
            elif self.loaded:
                return
            else:
                yield None

    def append(self, append: AppendRequest) -> None:
        """Queue an append; `Owner.on_append_durable` is called when it is acknowledged."""
        if self.error is not None:
            raise self.error
        assert self._wanted is None, "an append is on its way"
        self._wanted = append
        self._news.resolve(None)

    # -- the term

    async def run(self) -> None:
        """Run the term: get a producer epoch, fence, load and serve."""
        place = self._place
        try:
            writer = await self._fence()
            await self._load(writer)
            await self._serve_term(writer)
        except (FencedError, JournalRefused, CorruptDataError, JournalUnavailable) as error:
            self._over(error)
        except KafkaError as error:
            self._over(place.term_ending_error(error, "the cluster does not answer as it should"))
        except Exception as fault:  # noqa: BLE001 - a fault of ours, which the owner logs
            self._over(fault)

    def _over(self, error: Exception) -> None:
        self.error = error
        if self.loaded:
            self._owner.on_journal_lost(error)
        self._owner.on_records_available()

    async def _fence(self) -> JournalWriter:
        """Fence the journal's earlier owner: get a new producer epoch, and write this term's fence."""
        place, metrics = self._place, self._metrics
        await place.check_topic()
        writer = JournalWriter(place, await bump_producer_epoch(place))
        identity = writer.identity
        metrics.producer_id, metrics.epoch = identity.producer_id, identity.epoch
        metrics.fence_offset = await self._write_fence(writer, identity.producer_id)
        metrics.fences += 1
        return writer

    async def _write_fence(self, writer: JournalWriter, producer_id: int) -> int:
        """Write a fence under the writer's identity, and return its offset."""
        fence = make_fence(self._place, producer_id, writer.identity.epoch)
        payload, count = encode_single_record(*fence.encoded())
        return (await writer.write(payload, count, self._now_ms)).offset

    # -- loading

    async def _load(self, writer: JournalWriter) -> None:
        """Pass all records before the fence to the shard, and make sure that no other producer can write after it."""
        place, metrics, authors = self._place, self._metrics, self._decoding.authors
        began_ms = place.cluster.runtime.now_ms
        own, end = writer.identity.producer_id, metrics.fence_offset
        if place.settings.unfenced_records == SKIP:
            self._decoding.left_out = await self._survey(end)
        reading = JournalReader(place)
        await self._read_until(reading, end)
        for fence in authors.fences_that_may_write(own):
            last = TermIdentity(fence.producer_id, EPOCH_LAST, place.clock_with_sleep_ms())
            end = max(end, await self._write_fence(JournalWriter(place, last), fence.producer_id))
        await self._read_until(reading, end)
        self._check_authors(writer.identity)
        writer.expected = reading.offset
        await self._keep_first(writer)
        metrics.load_ms = place.cluster.runtime.now_ms - began_ms
        self.loaded = True
        self._owner.on_records_available()

    async def _read_until(self, reading: JournalReader, end: int) -> None:
        """Pass the records up to an offset to the shard, and wait until they are decoded."""
        while reading.offset <= end:
            await self._handover.queue_for_decoding(await reading.fetch_through(end))
            self._owner.on_records_available()
        await self._handover.wait_decoded()

    async def _survey(self, end: int) -> frozenset[Author]:
        """Read producer ids up to an offset, and return the producers that no fence proves to be coordinators."""
        reading, decoding = JournalReader(self._place, _SURVEY_BYTES), JournalDecoding(self._place)
        while reading.offset <= end:
            decoding.record_producers(await reading.fetch_through(end))
        return frozenset(decoding.authors.producers_without_fence())

    def _check_authors(self, own: TermIdentity) -> None:
        """Check that all records were written by coordinators.

        Raises:
            JournalRefused: there are records without a fence.
            FencedError: another coordinator's fence lies behind this one's.
        """
        place, authors = self._place, self._decoding.authors
        self._decoding.raise_if_unreadable()
        newest = authors.fences.get(own.producer_id)
        if newest is None or newest.epoch < own.epoch:
            raise JournalUnavailable(f"{place}: the own fence is not where it was written")
        if newest.epoch > own.epoch:
            raise FencedError(f"{place}: coordinator {newest.coordinator} at {newest.host}:{newest.port} has begun")
        foreign = {
            author: at
            for author, at in authors.producers_without_fence().items()
            if author not in self._decoding.left_out
        }
        if foreign:
            ids = ", ".join(f"{author[0]} (offset {at})" for author, at in sorted(foreign.items())[:10])
            raise JournalRefused(
                f"{place}: no coordinator wrote the batches of producer id {ids}. What they say is not served, and "
                "they may have replaced records of groups. Let the coordinators' user alone WRITE to topic "
                f"{place.topic.name}, then start with --set {UNFENCED_RECORDS}={SKIP}, which serves what is there "
                "without them"
            )

    async def _keep_first(self, writer: JournalWriter) -> None:
        """Check the topic's id and partition count against the journal's first fence; write that fence if missing.

        Groups hash to a partition by this count, so it must never change.
        """
        place = self._place
        first = self._decoding.authors.fences.get(FIRST)
        if first is None and place.index != 0:
            first = await self._first_of_all()
            known = False
        else:
            known = first is not None
        if first is not None:
            if first.topic_id != place.topic.id:
                raise JournalRefused(
                    f"{place}: these records were written in a topic with the id {first.topic_id}, this one's is "
                    f"{place.topic.id}: groups may have gone on elsewhere since. Name another topic with "
                    "--set journal.topic=…, and bring the groups' offsets there"
                )
            place.check_partitions(first.partitions)
        if not known:
            await self._write_fence(writer, FIRST)

    async def _first_of_all(self) -> Fence | None:
        """Return the first fence in partition 0, which holds for the whole topic; None if there is none.

        Partitions added later have none of their own yet.
        """
        here = self._place
        zero = JournalPartition(here.cluster, here.topic, 0, here.settings)
        zero.channel = here.channel
        reading, decoding = JournalReader(zero, _GLANCE_BYTES), JournalDecoding(zero)
        view = await reading.fetch()
        if view is not None:
            decoding.record_producers(view)
        return decoding.authors.fences.get(FIRST)

    # -- serving

    async def _serve_term(self, writer: JournalWriter) -> None:
        """Write the owner's appends one after the other, and a fence when there was none for a while."""
        place, metrics = self._place, self._metrics
        append_at_ms = place.clock_with_sleep_ms() + APPEND_EVERY_MS
        while True:
            await self._wait_until(append_at_ms, writer.identity)
            if self._renewed is not None:
                await self._continue_under(self._renewed, writer)
            wanted = self._wanted
            now_ms = self._now_ms if wanted is None else wanted.now_ms
            first, *others = (wanted.bodies if wanted is not None else ()) or [self._proof(writer.identity)]
            written = await writer.write(*first, now_ms)
            for body in others:
                await writer.write(*body, now_ms)
            append_at_ms = place.clock_with_sleep_ms() + APPEND_EVERY_MS
            metrics.appends += 1
            metrics.acknowledged_ms = written.sent_ms
            if wanted is not None:
                self._wanted, self._now_ms = None, wanted.now_ms
                self._owner.on_append_durable(wanted.token, written.sent_ms)

    def _proof(self, identity: TermIdentity) -> Body:
        """Return the batch that proves ownership without group records: the term's fence again.

        Compaction keeps only one of them.
        """
        return encode_single_record(*make_fence(self._place, identity.producer_id, identity.epoch).encoded())

    async def _wait_until(self, append_at_ms: float, identity: TermIdentity) -> None:
        """Wait for an append, a new epoch, or the time when something has to be written."""
        place = self._place
        while self._wanted is None and self._renewed is None:
            renew_at_ms = max(identity.asked_ms + NEW_EPOCH_EVERY_MS, self._renew_again_ms)
            now_ms = place.clock_with_sleep_ms()
            if now_ms >= renew_at_ms and not self._renewing:
                self._renewing = True
                place.cluster.runtime.spawn(self._renew(identity), f"new epoch of {place.transactional_id}")
            if now_ms >= append_at_ms:
                return
            self._news = Promise()
            await place.cluster.runtime.wait_first(self._news, timeout_ms=append_at_ms - now_ms)

    async def _renew(self, identity: TermIdentity) -> None:
        """Request the next epoch of this term's producer id while appends continue."""
        try:
            self._renewed = await bump_producer_epoch(self._place, identity)
        except FencedError as error:
            self._renewed = error
        except JournalUnavailable as error:
            self._renew_again_ms = self._place.clock_with_sleep_ms() + RENEW_AGAIN_MS
            log.warning(
                "[journal %s] could not renew its producer epoch, which is due daily; writing goes on, retrying: %s",
                self._place,
                error,
            )
        self._renewing = False
        self._news.resolve(None)

    async def _continue_under(self, renewed: TermIdentity | Exception, writer: JournalWriter) -> None:
        self._renewed = None
        if isinstance(renewed, Exception):
            raise renewed
        if renewed.producer_id != writer.identity.producer_id:
            raise JournalUnavailable(f"{self._place}: Kafka has given another producer id, which needs a new term")
        writer.adopt_identity(renewed)
        self._metrics.fence_offset = await self._write_fence(writer, renewed.producer_id)
        self._metrics.epoch = renewed.epoch
