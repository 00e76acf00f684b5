"""The group coordinator's journal in a topic of an Apache Kafka cluster: `Journal`, over the client's core.

A term is a producer epoch of the shard's transactional id; no transaction is ever begun. An append is one batch of an
idempotent producer with acks=all. Once the newest epoch has written, Kafka accepts batches from that epoch only.
`term` describes the course of a term and of an append, `fences` the record that keeps earlier owners out.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, Protocol

from kohort.client.net.cluster import Cluster
from kohort.client.net.runtime import Task
from kohort.cluster.journal.journal_partition import JournalPartition, JournalSettings, JournalTopic, JournalUnavailable
from kohort.cluster.journal.term import AppendRequest, Body, JournalMetrics, JournalTerm
from kohort.cluster.journal.topic import BATCH_BYTES_MAX
from kohort.errors import ErrorCode, FencedError, InvalidInputError
from kohort.groups.config import GroupConfig
from kohort.groups.records import Record, Tombstone
from kohort.journal.protocol import Owner
from kohort.journal.sealing import encode_unbounded_batch
from kohort.wire.batch import HEADER_SIZE

GATHERED_BYTES_MAX: Final = 8 << 20
"""An append of this size takes no further step: the last one may add 16 MiB, and has to fit into the batch."""


RECORD_BYTES_MAX: Final = 16 << 20
"""The largest record of a group or of a commit: it shares one batch with what was gathered before."""


def cap_to_journal_limits(config: GroupConfig) -> GroupConfig:
    """Return the group settings, with size limits lowered to what this journal can store."""
    return replace(
        config,
        group_record_bytes_max=min(config.group_record_bytes_max, RECORD_BYTES_MAX),
        commit_bytes_max=min(config.commit_bytes_max, RECORD_BYTES_MAX),
    )


class ClusterLink(Protocol):
    """The client's core and its driver: an `AsyncClient`."""

    @property
    def cluster(self) -> Cluster:
        """The client's core."""

    def wake(self) -> None:
        """Schedule a step of the core."""


class KafkaJournal:
    """One shard's journal. Shards may share a client: each has connections of its own.

    Attributes:
        ownership_proof_ms: the age at which a proof expires. A response relies on an append sent at most this long ago,
            because a deposed owner learns of it only when it writes.
        metrics: the journal's counters.
    """

    holds_transactions: Final = False
    append_bytes_max: Final = GATHERED_BYTES_MAX
    ownership_proof_ms: Final = 1_000

    def __init__(self, link: ClusterLink, topic: JournalTopic, index: int, settings: JournalSettings) -> None:
        self._link = link
        self._place = JournalPartition(link.cluster, topic, index, settings)
        self._current: JournalTerm | None = None
        self._task: Task[None] | None = None
        self._term = -1
        self._token = 0
        self.metrics = JournalMetrics()

    def begin_term(self, term: int, owner: Owner) -> Iterator[Sequence[Record] | None]:
        """Begin a term and return its records, as `Journal.begin_term` says.

        A term that begins again after a failure gets another producer epoch too.
        """
        self._check_term(term, begins=True)
        self.end_term()
        self._term = term
        cluster = self._link.cluster
        cluster.set_wanted_topics(self, [self._place.topic.name])
        self._current = JournalTerm(self._place, owner, self.metrics)
        self._task = cluster.runtime.spawn(self._current.run(), f"journal {self._place}")
        self._link.wake()
        return self._records(self._current)

    def _records(self, term: JournalTerm) -> Iterator[Sequence[Record] | None]:
        for records in term.records():
            self._link.wake()
            yield records
        self._link.wake()

    def append(self, term: int, records: Sequence[Record], now_ms: int) -> int:
        """Append records, as `Journal.append` says. Without records it only proves that the term is not over."""
        self._check_term(term)
        current = self._current
        if current is None:
            raise JournalUnavailable(f"{self._place}: the journal is closed")
        bodies = list(_bodies(records))
        current.append(AppendRequest(self._token + 1, bodies, now_ms))
        self._token += 1
        self._link.wake()
        return self._token

    def end_term(self) -> None:
        """End the present term, if any: its owner gets no more calls. `begin_term` can follow.

        An append that is under way may still be written.
        """
        if self._task is not None:
            self._task.cancel()
        self._current, self._task = None, None
        self._link.cluster.drop_wanted_topics(self)

    def _check_term(self, term: int, *, begins: bool = False) -> None:
        if term < self._term or (term > self._term and not begins):
            text = f"{self._place}: term {term} is over, {self._term} has begun"
            raise FencedError(text, ErrorCode.PRODUCER_FENCED)


def _bodies(records: Sequence[Record]) -> Iterator[Body]:
    """Return the batches of one append: a single batch, which is atomic.

    Only tombstones may need several batches. Each of them stands for itself. If some are lost, the shard deletes those
    records again after the next load, for the same reason (a deleted topic, expired offsets).

    Raises:
        InvalidInputError: the records can't be written; none was.
    """
    try:
        payload, count = encode_unbounded_batch(records)
    except struct.error as error:
        raise InvalidInputError(f"a group record can't be encoded: {error}", ErrorCode.INVALID_RECORD) from error
    if len(payload) + HEADER_SIZE <= BATCH_BYTES_MAX:
        if count:
            yield payload, count
    elif len(records) > 1 and all(isinstance(record, Tombstone) for record in records):
        half = len(records) // 2
        yield from _bodies(records[:half])
        yield from _bodies(records[half:])
    else:
        raise InvalidInputError(
            f"{len(payload)} bytes of group records in one append, the limit is {BATCH_BYTES_MAX}",
            ErrorCode.RECORD_LIST_TOO_LARGE,
        )
