"""Where one shard's journal lies on a Kafka cluster, and how requests get there."""

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
FOREIGN_RECORDS: Final = "journal.foreign.records"
"""The setting that says what becomes of records that nobody of ours wrote."""
TOPIC: Final = "__kohort_groups"
FIRST_WAIT_MS: Final = 20
WAIT_MAX_MS: Final = 250
"""What the cluster refuses for now is tried again so much later at most: a new leader is there within seconds."""


class JournalUnavailable(OSError):
    """The journal can't be read or written now: the term is over, and another may be begun."""


class JournalRefused(KafkaError):
    """The journal is not what its groups need, and waiting does not cure it: somebody has to decide."""

    default_code = ErrorCode.INVALID_CONFIG


@dataclass(frozen=True, slots=True)
class JournalSettings:
    """Who writes the journal, and what is asked of it.

    Attributes:
        coordinator: this coordinator's id, with incarnation, host and port: what a fence says of who set it.
        topic: the journal's topic; the transactional ids of its shards begin with its name.
        partitions: how many a topic is made with, and so how many shards there are.
        replication_factor: of a topic that is made; fewer brokers than that give it as many as there are.
        foreign_records: refuse or skip what nobody of ours wrote; see `FOREIGN_RECORDS`.
        answer_ms: a request unanswered for so long is sent again.
    """

    coordinator: int = -1
    incarnation: str = ""
    host: str = ""
    port: int = 0
    topic: str = TOPIC
    partitions: int = 50
    replication_factor: int = 3
    foreign_records: str = REFUSE
    answer_ms: int = 5_000


@dataclass(frozen=True, slots=True)
class JournalTopic:
    """The topic that groups hash to: what must not change under them."""

    name: str
    id: uuid.UUID
    partitions: int


class JournalPlace:
    """One partition of the journal's topic, on a connection of its own.

    Attributes:
        cluster: the client's core.
        lane: of its connections.
        repeats: requests that were sent again.
    """

    def __init__(self, cluster: Cluster, topic: JournalTopic, index: int, settings: JournalSettings) -> None:
        self.cluster = cluster
        self.topic = topic
        self.index = index
        self.settings = settings
        self.partition = TopicPartition(topic.name, index)
        self.transactional_id = f"{topic.name}-{index}"
        self.to_coordinator = Coordinator(self.transactional_id, TRANSACTION)
        self.lane = f"journal-{index}"
        self.repeats = 0

    def __str__(self) -> str:
        return str(self.partition)

    def elapsed_ms(self) -> float:
        """Now, by a clock that also runs while the machine sleeps."""
        return self.cluster.runtime.elapsed_ms()

    async def leader(self, timeout_ms: float) -> BrokerById:
        """Who leads the partition; asked for only where it is not known, since every append passes here."""
        node = self.cluster.metadata.leader(self.partition)
        return BrokerById(node if node >= 0 else await self.cluster.leader(self.partition, timeout_ms))

    async def wait(self, failures: int) -> None:
        """After a request that failed: ask who leads now, and wait a little, longer after each failure in a row."""
        self.repeats += 1
        self.cluster.request_metadata().mark_handled()
        await self.cluster.runtime.sleep(self.cluster.links.backoff_ms(failures, FIRST_WAIT_MS, WAIT_MAX_MS))

    def check_id(self) -> None:
        """Raises JournalUnavailable where the topic is known to have another id by now: nothing is written there."""
        known = self.cluster.metadata.topic_id(self.topic.name)
        if known not in (NO_TOPIC_ID, self.topic.id):
            raise JournalUnavailable(f"{self}: the topic was deleted and made again")

    async def check_topic(self) -> None:
        """Hold the topic as it is now against what it was when the process began. Shards that ask at once share it.

        Raises:
            JournalUnavailable: the cluster does not show it.
            JournalRefused: it has been made again, or has other partitions: groups would lie elsewhere.
        """
        name = self.topic.name
        info = (await self.cluster.refresh_metadata(self.settings.answer_ms)).topics.get(name)
        if info is None or info.error:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if info is None else info.error
            raise self.lost(_error(code), f"topic {name} can't be seen")
        if info.topic_id != self.topic.id:
            raise JournalRefused(
                f"topic {name} was deleted and made again (its id is {info.topic_id}, it was {self.topic.id}): what "
                "its groups had committed is gone with it. To go on with what is there, start the coordinators again"
            )
        self.check_partitions(len(info.partitions))

    def check_partitions(self, partitions: int) -> None:
        """Raises JournalRefused unless groups are spread over so many partitions still."""
        fewer, more = sorted((partitions, self.topic.partitions))
        if fewer != more:
            raise JournalRefused(
                f"topic {self.topic.name} has {more} partitions, its groups were spread over {fewer}: they would be "
                "looked for elsewhere, and found without offsets. Partitions can't be taken away again: name another "
                "topic with --set journal.topic=…, and bring the groups' offsets there"
            )

    def lost(self, error: KafkaError, what: str) -> Exception:
        """What a term ends with, for an error of the cluster that it does not get over."""
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


def passes(error: KafkaError) -> bool:
    """Whether the same request may do better a little later."""
    return isinstance(error, RetriableError) or error.code.retriable


def _error(code: ErrorCode) -> KafkaError:
    kind = NotAuthorizedError if code is ErrorCode.TOPIC_AUTHORIZATION_FAILED else KafkaError
    return kind(code.text, code)
