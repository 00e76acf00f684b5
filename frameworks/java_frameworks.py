"""Java frameworks whose programs are compiled here: Kafka Streams and Spring Kafka."""

from __future__ import annotations

from collections import Counter

from frameworks.builds import LOGGING, java_command
from frameworks.framework import INPUT, OUTPUT, Framework, Site

KAFKA_VERSION = "4.4.0"
STREAMS_BEFORE = "3.9.1"
"""The version from which a running Kafka Streams application is upgraded."""
SPRING_VERSION = "4.1.2"


class KafkaStreams(Framework):
    """Kafka Streams: a repartition topic and a count in RocksDB with its changelog, exactly once."""

    name = "streams"
    title = "Kafka Streams"
    version = KAFKA_VERSION
    exactly_once = True
    story = "repartition topic, count by key in RocksDB with its changelog; two instances"
    settings = "`processing.guarantee=exactly_once_v2`, `session.timeout.ms=6000`, `commit.interval.ms=200`"

    def prepare(self, site: Site) -> None:
        """Compile the program, and create the topics."""
        self._java = java_command("StreamsCount", [f"org.apache.kafka:kafka-streams:{KAFKA_VERSION}", *LOGGING])
        super().prepare(site)

    def command(self, site: Site, member: int) -> list[str]:
        state = str(site.member_folder(member) / "state")
        chosen = ["commit.interval.ms=200", "session.timeout.ms=6000", "heartbeat.interval.ms=1500"]
        chosen += [f"client.id=streams-{member}"]
        return [*self._java, site.servers, "frameworks-streams", INPUT, OUTPUT, state, *chosen]


class KafkaStreamsUpgrade(KafkaStreams):
    """Kafka Streams in a rolling upgrade: what is killed returns with `upgrade.from`, and the next time without."""

    name = "streams-upgrade"
    title = "Kafka Streams, rolling upgrade"
    version = f"{STREAMS_BEFORE} to {KAFKA_VERSION}"
    story = "the same program; each instance begins in the old version, and returns in the new one"
    settings = f"those of Kafka Streams; `upgrade.from={STREAMS_BEFORE.rpartition('.')[0]}` at the first return only"

    def prepare(self, site: Site) -> None:
        """Compile the program against both versions, and create the topics."""
        self._before = java_command("StreamsCount", [f"org.apache.kafka:kafka-streams:{STREAMS_BEFORE}", *LOGGING])
        self._starts: Counter[int] = Counter()
        super().prepare(site)

    def command(self, site: Site, member: int) -> list[str]:
        newest = super().command(site, member)
        start = self._starts[member]
        self._starts[member] += 1
        if start == 0:
            return [*self._before, *newest[len(self._java) :]]
        return [*newest, f"upgrade.from={STREAMS_BEFORE.rpartition('.')[0]}"] if start == 1 else newest


class SpringKafka(Framework):
    """Spring Kafka: a listener container whose transactions have the records and the offsets."""

    name = "spring"
    title = "Spring Kafka"
    version = SPRING_VERSION
    exactly_once = True
    story = "a listener container of two threads, transactions with offsets; two applications"
    settings = "`transactionIdPrefix` of each member, `transaction.timeout.ms=10000`, `session.timeout.ms=6000`"
    protocol = "classic"

    def prepare(self, site: Site) -> None:
        """Compile the program, and create the topics."""
        spring = f"org.springframework.kafka:spring-kafka:{SPRING_VERSION}"
        clients = f"org.apache.kafka:kafka-clients:{KAFKA_VERSION}"
        self._java = java_command("SpringForward", [spring, clients, *LOGGING])
        super().prepare(site)

    def command(self, site: Site, member: int) -> list[str]:
        return [*self._java, site.servers, INPUT, OUTPUT, f"spring-{member}-", self.protocol]


class SpringKafkaNextProtocol(SpringKafka):
    """Spring Kafka in a group of the consumer protocol (KIP-848)."""

    name = "spring-kip-848"
    title = "Spring Kafka, KIP-848"
    settings = "`group.protocol=consumer`, `transactionIdPrefix` of each member, `transaction.timeout.ms=10000`"
    protocol = "consumer"
