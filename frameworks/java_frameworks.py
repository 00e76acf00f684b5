"""Java frameworks whose programs are compiled here: Kafka Streams, Spring Kafka and others."""

from __future__ import annotations

from collections import Counter

from frameworks.builds import LOGGING, java_command
from frameworks.framework import INPUT, OUTPUT, Framework, Site

KAFKA_VERSION = "4.4.0"
STREAMS_BEFORE = "3.9.1"
"""The version from which a running Kafka Streams application is upgraded."""
SPRING_VERSION = "4.1.2"
PARALLEL_VERSION = "0.5.3.3"
REACTOR_VERSION = "1.3.23"
REACTOR_CLIENTS_VERSION = "3.9.1"
CAMEL_VERSION = "4.22.0"


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


class ParallelConsumer(Framework):
    """Confluent's parallel consumer: transactions that have the records of many keys, and the offsets.

    A record may come out again after a rebalance, on every broker. When partitions are revoked, the processor commits a
    transaction that may have outputs whose offsets it lacks (pull request 436 of astubbs/parallel-consumer). Therefore
    a repeated record does not count as a fault.
    """

    name = "parallel-consumer"
    title = "Confluent's parallel consumer"
    version = PARALLEL_VERSION
    exactly_once = False
    story = "`pollAndProduce` of 8 threads, ordered by key, in transactions with the offsets; two programs"
    settings = (
        "`PERIODIC_TRANSACTIONAL_PRODUCER` every 200 ms, `transactional.id` of each member, "
        "`transaction.timeout.ms=10000`, `session.timeout.ms=6000`; the program ends when its processor has failed"
    )

    def prepare(self, site: Site) -> None:
        """Compile the program, and create the topics."""
        library = f"io.confluent.parallelconsumer:parallel-consumer-core:{PARALLEL_VERSION}"
        self._java = java_command("ParallelForward", [library, *LOGGING])
        super().prepare(site)

    def command(self, site: Site, member: int) -> list[str]:
        return [*self._java, site.servers, INPUT, OUTPUT, f"parallel-{member}"]


class ReactorKafka(Framework):
    """Reactor Kafka: `receiveExactlyOnce` with a transactional sender."""

    name = "reactor"
    title = "Reactor Kafka"
    version = f"{REACTOR_VERSION} on kafka-clients {REACTOR_CLIENTS_VERSION}"
    exactly_once = True
    story = "`receiveExactlyOnce`, each batch in a transaction with its offsets; two programs"
    settings = (
        "`maxDelayRebalance` 2 s, `transactional.id` of each member, `transaction.timeout.ms=10000`, "
        "`session.timeout.ms=6000`; the program ends when a transaction fails"
    )

    def prepare(self, site: Site) -> None:
        """Compile the program, and create the topics."""
        library = f"io.projectreactor.kafka:reactor-kafka:{REACTOR_VERSION}"
        clients = f"org.apache.kafka:kafka-clients:{REACTOR_CLIENTS_VERSION}"
        self._java = java_command("ReactorForward", [library, clients, *LOGGING])
        super().prepare(site)

    def command(self, site: Site, member: int) -> list[str]:
        return [*self._java, site.servers, INPUT, OUTPUT, f"reactor-{member}"]


class CamelKafka(Framework):
    """Camel Kafka: a route from topic to topic that commits by hand."""

    name = "camel"
    title = "Camel Kafka"
    version = CAMEL_VERSION
    exactly_once = False
    story = "a route of two consumers that sends each record on, then commits; two programs"
    settings = "`autoCommitEnable=false`, `allowManualCommit=true`, `breakOnFirstError=true`, `sessionTimeoutMs=6000`"

    def prepare(self, site: Site) -> None:
        """Compile the program, and create the topics."""
        libraries = [f"org.apache.camel:{name}:{CAMEL_VERSION}" for name in ("camel-kafka", "camel-main")]
        self._java = java_command("CamelForward", [*libraries, *LOGGING])
        super().prepare(site)

    def command(self, site: Site, member: int) -> list[str]:
        return [*self._java, site.servers, INPUT, OUTPUT]
