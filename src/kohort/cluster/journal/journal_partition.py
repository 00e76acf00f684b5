"""The partition of one shard's journal on a Kafka cluster, and how requests reach its leader."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import Final

from kohort.client.net.cluster import TRANSACTION, BrokerById, Cluster, Coordinator
from kohort.client.net.metadata import NO_TOPIC_ID
from kohort.errors import ErrorCode, FencedError, KafkaError, NotAuthorizedError, RetriableError
from kohort.ids import TopicPartition

REFUSE: Final = "refuse"
SKIP: Final = "skip"
UNFENCED_RECORDS: Final = "journal.unfenced.records"
"""The setting for records that no coordinator wrote: refuse or skip them."""
TOPIC: Final = "__kohort_groups"
FIRST_WAIT_MS: Final = 20
WAIT_MAX_MS: Final = 250
"""The longest backoff after a temporary error: a new leader is elected within seconds."""


class JournalUnavailable(OSError):
    """The error that a journal can't be read or written now: the term is over, and a new term may begin."""


class JournalRefused(KafkaError):
    """The error that a journal's topic does not fit its groups, which only an operator can resolve."""

    default_code = ErrorCode.INVALID_CONFIG


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """A coordinator's identity as a journal writer, and the properties of the journal's topic.

    Attributes:
        coordinator: this coordinator's id; a fence records it with incarnation, host and port.
        incarnation: the id of this process.
        host: the advertised host of this coordinator.
        port: the advertised port of this coordinator.
        topic: the journal's topic; the transactional ids of its shards begin with its name.
        partitions: the partition count of a created topic, which is the number of shards.
        replication_factor: the replication factor of a created topic, lowered to the number of brokers.
        unfenced_records: whether to refuse or skip records that no coordinator wrote (`UNFENCED_RECORDS`).
        answer_ms: a request without a response is sent again after this time.
    """

    coordinator: int = -1
    incarnation: str = ""
    host: str = ""
    port: int = 0
    topic: str = TOPIC
    partitions: int = 50
    replication_factor: int = 3
    unfenced_records: str = REFUSE
    answer_ms: int = 5_000


@dataclass(frozen=True, slots=True)
class JournalTopic:
    """The topic that groups hash to: its id and partition count must not change."""

    name: str
    id: uuid.UUID
    partitions: int


class JournalPartition:
    """One partition of the journal's topic, on a connection of its own.

    Attributes:
        cluster: the client's core.
        channel: the name of its connections.
    """

    def __init__(self, cluster: Cluster, topic: JournalTopic, index: int, settings: JournalSettings) -> None:
        self.cluster = cluster
        self.topic = topic
        self.index = index
        self.settings = settings
        self.partition = TopicPartition(topic.name, index)
        self.transactional_id = f"{topic.name}-{index}"
        self.to_coordinator = Coordinator(self.transactional_id, TRANSACTION)
        self.channel = f"journal-{index}"

    def __str__(self) -> str:
        return str(self.partition)

    def clock_with_sleep_ms(self) -> float:
        """Return the time by a clock that also runs while the machine sleeps."""
        return self.cluster.runtime.clock_with_sleep_ms()

    async def leader(self, timeout_ms: float) -> BrokerById:
        """Return the partition's leader. Look it up only when it is unknown, because every append passes here."""
        node = self.cluster.metadata.leader(self.partition)
        return BrokerById(node if node >= 0 else await self.cluster.leader(self.partition, timeout_ms))

    async def back_off(self, failures: int) -> None:
        """Refresh metadata after a failed request, and back off, longer after each failure in a row."""
        self.cluster.request_metadata().mark_handled()
        await self.cluster.runtime.sleep(self.cluster.connections.backoff_ms(failures, FIRST_WAIT_MS, WAIT_MAX_MS))

    def check_topic_id(self) -> None:
        """Raise JournalUnavailable if the topic has another id by now: nothing may be written to it."""
        known = self.cluster.metadata.topic_id(self.topic.name)
        if known not in (NO_TOPIC_ID, self.topic.id):
            raise JournalUnavailable(f"{self}: the topic was deleted and made again")

    async def check_topic(self) -> None:
        """Compare the topic with what it was when the process began. Concurrent shards share one metadata request.

        Raises:
            JournalUnavailable: the cluster does not show the topic.
            JournalRefused: it was recreated, or its partition count changed: groups would hash to other partitions.
        """
        name = self.topic.name
        info = (await self.cluster.refresh_metadata(self.settings.answer_ms)).topics.get(name)
        if info is None or info.error:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error
            raise self.term_ending_error(_error(code), f"topic {name} can't be seen")
        if info.topic_id != self.topic.id:
            raise JournalRefused(
                f"topic {name} was deleted and made again (its id is {info.topic_id}, it was {self.topic.id}): what "
                "its groups had committed is gone with it. To go on with what is there, start the coordinators again"
            )
        self.check_partitions(len(info.partitions))

    def check_partitions(self, partitions: int) -> None:
        """Raise JournalRefused unless groups are still spread over this many partitions."""
        fewer, more = sorted((partitions, self.topic.partitions))
        if fewer != more:
            raise JournalRefused(
                f"topic {self.topic.name} has {more} partitions, its groups were spread over {fewer}: they would be "
                "looked for elsewhere, and found without offsets. Partitions can't be taken away again: name another "
                "topic with --set journal.topic=…, and bring the groups' offsets there"
            )

    def term_ending_error(self, error: KafkaError, what: str) -> Exception:
        """Return the exception that ends the term after a non-retriable error of the Kafka cluster."""
        if isinstance(error, FencedError):
            return FencedError(f"{self}: {what}: {error.message}", error.code)
        if isinstance(error, NotAuthorizedError):
            name = self.topic.name
            return JournalUnavailable(
                f"{self}: {what}: {error.message or error.code.text}. The coordinators' user needs READ, WRITE, "
                f"DESCRIBE and DESCRIBE_CONFIGS on topic {name}, DESCRIBE and WRITE on transactional ids that begin "
                f"with {name}-"
            )
        return JournalUnavailable(f"{self}: {what}: {error.message or error.code.text} ({error.code.name})")


def is_retriable_request(error: KafkaError) -> bool:
    """Return whether a retry of the same request may succeed."""
    return isinstance(error, RetriableError) or error.code.retriable


def _error(code: ErrorCode) -> KafkaError:
    kind = NotAuthorizedError if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED else KafkaError
    return kind(code.text, code)
