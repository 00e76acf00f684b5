"""Batches of one producer id and epoch, one after the other, each brought to the partition's leader once.

A batch keeps its sequence, so that the leader knows it when it comes again, and is sent again for `REPEAT_MS` at most
by a clock that counts sleep: a leader forgets producers that were silent for `producer.id.expiration.ms`, and would
then take an old epoch's batch for a new producer's first. For the same reason nothing leaves at all when the last batch
was acknowledged long ago: the process stood still.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kohort.client.net.cluster import Between
from kohort.client.net.metadata import NO_TOPIC_ID
from kohort.cluster.journal.place import JournalPlace, JournalUnavailable, passes
from kohort.errors import ErrorCode, FencedError, KafkaError, error_for
from kohort.wire.batch import seal_batch
from kohort.wire.data import ProduceRequest, ProduceResponse
from kohort.wire.transactions import InitProducerIdRequest

REPEAT_MS: Final = 30_000
APPEND_EVERY_MS: Final = 300_000
"""Who has nothing to write appends so often all the same, or leaders would forget the producer."""
SILENCE_MAX_MS: Final = 3 * APPEND_EVERY_MS
"""Who was silent for longer stood still; a quarter of the shortest `producer.id.expiration.ms` that is accepted."""
_TRANSACTION_TIMEOUT_MS: Final = 60_000
"""Below every broker's limit; no transaction is ever begun."""
_HIGHEST_BY_NAME: Final = 12
_OWN_ID_SINCE: Final = 3
_SEQUENCES: Final = 2**31
_ACKS_ALL: Final = -1
_BROKER_SHARE: Final = 0.8
"""Of the time that an answer may take, what the leader is told that its replicas may take."""
_NOT_THERE = (ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE)


@dataclass(frozen=True, slots=True)
class Identity:
    """A producer id and epoch, and when it was asked for (`JournalPlace.elapsed_ms`)."""

    producer_id: int
    epoch: int
    asked_ms: float


async def new_epoch(place: JournalPlace, own: Identity | None = None) -> Identity:
    """The next epoch of the shard's transactional id.

    Args:
        own: what this owner has; another one's epoch between fails with FencedError. None: whoever has it is deposed.

    Raises:
        FencedError, JournalUnavailable: it can't be had.
    """
    cluster, settings = place.cluster, place.settings
    asked_ms = 0.0

    async def attempt() -> Identity:
        nonlocal asked_ms
        asked_ms = place.elapsed_ms()
        request = InitProducerIdRequest(
            transactional_id=place.transactional_id,
            transaction_timeout_ms=_TRANSACTION_TIMEOUT_MS,
            producer_id=-1 if own is None else own.producer_id,
            producer_epoch=-1 if own is None else own.epoch,
        )
        wanted = Between(request, lowest=0 if own is None else _OWN_ID_SINCE)
        answer = await cluster.send(wanted, place.to_coordinator, timeout_ms=settings.answer_ms, lane=place.lane)
        if answer.error_code:
            code = ErrorCode.of(answer.error_code)
            if code in _NOT_THERE:
                cluster.forget_coordinator(place.to_coordinator)
            raise error_for(code, code.text)
        return Identity(answer.producer_id, answer.producer_epoch, asked_ms)

    what = f"no producer epoch of transactional id {place.transactional_id}"
    try:
        return await cluster.retrying(attempt, what, REPEAT_MS)
    except KafkaError as error:
        raise place.lost(error, what) from error


@dataclass(frozen=True, slots=True)
class Written:
    """A batch that is acknowledged.

    Attributes:
        offset: of its first record.
        sent_ms: when it was first sent, by the runtime's monotonic clock, what the machine slept since taken off.
    """

    offset: int
    sent_ms: int


class JournalWriter:
    """Writes under one identity. One batch at a time.

    Attributes:
        identity: under which the next batch goes.
        expected: the offset that it must be given, None: any. Another one means that somebody else writes.
    """

    def __init__(self, place: JournalPlace, identity: Identity) -> None:
        self._place = place
        self.expected: int | None = None
        self._sequence = 0
        self._first_ms: float | None = None
        self.become(identity)

    def become(self, identity: Identity) -> None:
        """Go on under another epoch, counting from 0."""
        self.identity = identity
        self._sequence = 0
        self._fresh_until_ms = identity.asked_ms + REPEAT_MS

    async def write(self, payload: bytes, count: int, now_ms: int) -> Written:
        """Append a batch.

        Args:
            payload: its records, encoded.
            count: how many.
            now_ms: wall clock, what the records are stamped with where the topic does not do it.

        Raises:
            FencedError: a later epoch has written here.
            JournalUnavailable: it is not known to be written, and must not be sent again.
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
        elapsed_ms = place.elapsed_ms()
        first_ms = elapsed_ms if self._first_ms is None else self._first_ms
        if elapsed_ms - first_ms > REPEAT_MS:
            raise JournalUnavailable(f"{place}: an append was answered after {(elapsed_ms - first_ms) / 1000:.0f} s")
        if self.expected is not None and offset != self.expected:
            raise JournalUnavailable(
                f"{place}: an append was given offset {offset} in place of {self.expected}: somebody else writes to "
                f"topic {place.topic.name}. Let the coordinators' user alone WRITE to it"
            )
        self._sequence = (self._sequence + count) % _SEQUENCES
        self._fresh_until_ms = first_ms + SILENCE_MAX_MS
        if self.expected is not None:
            self.expected += count
        return Written(offset, int(place.cluster.runtime.now_ms - (elapsed_ms - first_ms)))

    async def _deliver(self, batch: bytes) -> int:
        """Send the same batch until it is answered; gives its offset."""
        place, failures = self._place, 0
        last: KafkaError | None = None
        while True:
            self._check(last)
            try:
                return await self._ask(batch)
            except KafkaError as error:
                if isinstance(error, FencedError) or not passes(error):
                    raise place.lost(error, "an append was refused") from error
                last = error
            failures += 1
            await place.wait(failures)
            place.check_id()

    def _check(self, last: KafkaError | None = None) -> None:
        """Whether a batch may leave now, perhaps again.

        Raises:
            JournalUnavailable: it may not.
        """
        now_ms = self._place.elapsed_ms()
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
        self._check()
        if self._first_ms is None:
            self._first_ms = self._place.elapsed_ms()

    async def _ask(self, batch: bytes) -> int:
        place, limit = self._place, self._place.settings.answer_ms
        part = ProduceRequest.PartitionProduceData(index=place.index, records=batch)
        topic = ProduceRequest.TopicProduceData(name=place.topic.name, topic_id=place.topic.id, partition_data=[part])
        request = ProduceRequest(acks=_ACKS_ALL, timeout_ms=int(limit * _BROKER_SHARE), topic_data=[topic])
        answer = await place.cluster.send(
            Between(request, highest=_HIGHEST_BY_NAME if place.topic.id == NO_TOPIC_ID else None),
            await place.leader(limit),
            timeout_ms=limit,
            lane=place.lane,
            leaving=self._leaving,
        )
        return self._offset(answer)

    def _offset(self, answer: ProduceResponse) -> int:
        try:
            (found,) = answer.responses[0].partition_responses
        except (IndexError, ValueError):
            raise JournalUnavailable(f"{self._place}: the answer to an append says nothing of it") from None
        if found.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER and self.expected is not None:
            return self.expected
        if found.error_code:
            code = ErrorCode.of(found.error_code)
            raise error_for(code, found.error_message or code.text)
        return found.base_offset
