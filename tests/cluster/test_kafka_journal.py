"""The journal on a real Apache Kafka: what owners write is read by the next, and the last one is kept out."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace

import pytest

from kohort import Admin, Producer
from kohort.client.admin.values import ConfigResource, NewTopic, ResourceType
from kohort.cluster.journal.fences import FIRST
from kohort.cluster.journal.journal_partition import SKIP, JournalRefused, JournalSettings, JournalUnavailable
from kohort.cluster.journal.kafka_journal import KafkaJournal
from kohort.errors import ErrorCode, FencedError, InvalidInputError
from kohort.groups.records import OffsetCommitted
from kohort.journal.codec import encode_record
from tests.cluster.journals import NOW, Cluster, Holder, cluster, committed, groups_of
from tests.journal.test_journal import RECORDS
from tests.support.apache_kafka import ApacheKafka
from tests.support.waiting import until

pytestmark = pytest.mark.kafka


FIT = {
    "cleanup.policy": "compact",
    "message.timestamp.type": "LogAppendTime",
    "max.message.bytes": str(32 << 20),
    "segment.bytes": str(32 << 20),
}


def settings(**chosen: object) -> JournalSettings:
    """A topic of the test's own."""
    name = f"__groups-{uuid.uuid4().hex[:8]}"
    return JournalSettings(**{"topic": name, "partitions": 2, "coordinator": 101, **chosen})  # type: ignore[arg-type]


def run(kafka: ApacheKafka, test: Callable[[Cluster], Awaitable[None]], chosen: JournalSettings | None = None) -> None:
    async def main() -> None:
        async with cluster(kafka.bootstrap_servers, chosen or settings()) as opened:
            await test(opened)

    asyncio.run(main())


def test_the_next_owner_reads_what_was_acknowledged_and_the_last_one_is_fenced(apache_kafka: ApacheKafka) -> None:
    async def test(opened: Cluster) -> None:
        first = await opened.holder()
        assert await first.load() == []
        for offset in range(5):
            await first.append(committed(offset))
        await first.append(*(committed(n, partition=n) for n in range(10, 40)))
        second = await opened.holder()
        assert groups_of(await second.load()) == [*range(5), *range(10, 40)]
        with pytest.raises(FencedError, match="append was refused"):
            await first.append(committed(99))
        await second.append(committed(5))
        assert groups_of(await first.load())[-1] == 5
        assert first.journal.metrics.epoch == second.journal.metrics.epoch + 1

    run(apache_kafka, test)


def test_an_empty_append_is_proof_and_brings_no_record(apache_kafka: ApacheKafka) -> None:
    async def test(opened: Cluster) -> None:
        first = await opened.holder()
        await first.load()
        before_ms = time.monotonic_ns() // 1_000_000
        sent_ms = await first.append()
        assert before_ms <= sent_ms <= time.monotonic_ns() // 1_000_000
        await first.append(committed(1))
        second = await opened.holder()
        assert groups_of(await second.load()) == [1]
        with pytest.raises(FencedError):
            await first.append()

    run(apache_kafka, test)


def test_a_term_that_begins_again_is_another_epoch_and_older_terms_are_refused(apache_kafka: ApacheKafka) -> None:
    async def test(opened: Cluster) -> None:
        holder = await opened.holder()
        await holder.load()
        epoch = holder.journal.metrics.epoch
        holder.term -= 1
        await holder.load()
        assert holder.journal.metrics.epoch == epoch + 1
        await holder.load()
        with pytest.raises(FencedError, match="term 1 is over"):
            holder.journal.append(1, [committed(1)], NOW)
        with pytest.raises(FencedError, match="term 1 is over"):
            holder.journal.begin_term(1, holder)

    run(apache_kafka, test)


def test_an_owner_of_another_producer_id_fences_the_one_before(apache_kafka: ApacheKafka) -> None:
    """Kafka forgets a transactional id after a week without transactions, and gives the next owner another id."""

    async def test(opened: Cluster) -> None:
        first = await opened.holder()
        await first.load()
        await first.append(committed(1))
        second = await opened.stranger()
        assert groups_of(await second.load()) == [1]
        assert first.journal.metrics.producer_id != second.journal.metrics.producer_id
        with pytest.raises(FencedError):
            await first.append(committed(99))
        await second.append(committed(2))
        third = await opened.stranger()
        fourth = await opened.stranger()
        assert groups_of(await third.load()) == [1, 2]
        assert groups_of(await fourth.load()) == [1, 2]
        for deposed in (second, third):
            with pytest.raises(FencedError):
                await deposed.append(committed(99))
        assert groups_of(await fourth.load()) == [1, 2]

    run(apache_kafka, test)


def test_large_steps_are_one_batch_and_more_than_fits_is_refused_before_it_is_sent(apache_kafka: ApacheKafka) -> None:
    async def test(opened: Cluster) -> None:
        holder = await opened.holder()
        await holder.load()
        text = "x" * 30_000
        records = [committed(number, partition=number, metadata=text) for number in range(1_000)]
        await holder.append(*records)
        with pytest.raises(InvalidInputError) as refused:
            holder.send(*records, *records)
        assert refused.value.code is ErrorCode.RECORD_LIST_TOO_LARGE
        await holder.append(committed(7))
        assert groups_of(await holder.load()) == [*range(1_000), 7]

    run(apache_kafka, test)


def test_shards_may_share_a_client(apache_kafka: ApacheKafka) -> None:
    async def test(opened: Cluster) -> None:
        topic, link = await opened.topic(), await opened.client()
        holders = [Holder(KafkaJournal(link, topic, index, opened.settings)) for index in range(2)]
        await asyncio.gather(*(holder.load() for holder in holders))
        for number in range(20):
            await asyncio.gather(*(holder.append(committed(number)) for holder in holders))
        holders[0].journal.end_term()
        await holders[1].append(committed(20))
        assert groups_of(await holders[0].load()) == [*range(20)]
        assert groups_of(await holders[1].load()) == [*range(21)]

    run(apache_kafka, test)


# -- who else writes


def test_a_foreign_batch_stops_the_owner_and_is_not_served(
    apache_kafka: ApacheKafka, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(opened: Cluster) -> None:
        holder = await opened.holder()
        await holder.load()
        await holder.append(committed(1))
        foreign = encode_record(committed(666))
        for idempotent in (True, False):
            with Producer(apache_kafka.bootstrap_servers, enable_idempotence=idempotent) as producer:
                producer.send(opened.settings.topic, foreign[1], key=foreign[0], partition=0).result()
        with pytest.raises(JournalUnavailable, match="somebody else writes.*WRITE"):
            await holder.append(committed(2))
        with pytest.raises(JournalRefused, match=r"no coordinator wrote .*journal\.unfenced\.records=skip"):
            await holder.load()
        skips = await opened.holder(settings=replace(opened.settings, unfenced_records=SKIP))
        assert groups_of(await skips.load()) == [1, 2]
        assert caplog.text.count("because no coordinator wrote it; keys: group g") == 2
        await skips.append(committed(3))
        assert groups_of(await skips.load()) == [1, 2, 3]

    run(apache_kafka, test)


def test_what_is_no_record_at_all_is_foreign_too(apache_kafka: ApacheKafka) -> None:
    async def test(opened: Cluster) -> None:
        topic = await opened.topic()
        with Producer(apache_kafka.bootstrap_servers) as producer:
            producer.send(topic.name, b"?", key=b"\0\3\xff\xff", partition=0).result()
        with pytest.raises(JournalRefused, match="no coordinator wrote"):
            await (await opened.holder()).load()
        skips = await opened.holder(settings=replace(opened.settings, unfenced_records=SKIP))
        assert await skips.load() == []

    run(apache_kafka, test)


# -- where groups lie


def test_a_topic_with_more_partitions_is_refused(apache_kafka: ApacheKafka) -> None:
    async def test(opened: Cluster) -> None:
        held = await opened.holder()
        await held.load()
        with Admin(apache_kafka.bootstrap_servers) as admin:
            admin.create_partitions({opened.settings.topic: 3}).all()
        await held.append(committed(1))
        words = "has 3 partitions, its groups were spread over 2.*journal.topic"
        with pytest.raises(JournalRefused, match=words):
            await held.load()
        for index in range(3):
            later = await opened.holder(index)
            for _ in range(2):
                with pytest.raises(JournalRefused, match=words):
                    await later.load()

    run(apache_kafka, test)


def test_a_topic_that_was_made_again_is_another(apache_kafka: ApacheKafka) -> None:
    async def test(opened: Cluster) -> None:
        held = await opened.holder()
        await held.load()
        with Admin(apache_kafka.bootstrap_servers) as admin:
            admin.delete_topics([opened.settings.topic]).all()
            until(lambda: _made_again(admin, opened.settings.topic), "the topic is made again")
        with pytest.raises(JournalUnavailable, match="made again|topic"):
            await held.append(committed(1))
        with pytest.raises(JournalRefused, match="was deleted and made again"):
            await held.load()
        assert await (await opened.holder()).load() == []

    run(apache_kafka, test)


def _made_again(admin: Admin, topic: str) -> bool:
    made = admin.create_topics([NewTopic(topic, 2, 1, FIT)])
    return not made.errors


# -- what compaction leaves


@pytest.fixture
def quick_cleaner(apache_kafka: ApacheKafka) -> Iterator[None]:
    """The cleaner looks for work all the time, and not every fifteen seconds."""
    everywhere = ConfigResource(ResourceType.BROKER, "")
    with Admin(apache_kafka.bootstrap_servers) as admin:
        admin.incremental_alter_configs({everywhere: {"log.cleaner.backoff.ms": "100"}}).all()
        yield
        admin.incremental_alter_configs({everywhere: {"log.cleaner.backoff.ms": None}}).all()


@pytest.mark.usefixtures("quick_cleaner")
def test_compaction_keeps_the_fence_of_every_producer_id_and_the_newest_records(apache_kafka: ApacheKafka) -> None:
    keys, topic = 20, f"__groups-{uuid.uuid4().hex[:8]}"
    folder = apache_kafka.log_dir / f"{topic}-0"

    def size() -> int:
        return sum(path.stat().st_size for path in folder.glob("*.log") if path.exists())

    async def test(opened: Cluster) -> None:
        first = await opened.holder()
        await first.load()
        with Admin(apache_kafka.bootstrap_servers) as admin:
            often = {"segment.ms": "200", "min.cleanable.dirty.ratio": "0.001", "delete.retention.ms": "0"}
            admin.incremental_alter_configs({ConfigResource(ResourceType.TOPIC, topic): often}).all()
        await first.load()
        for number in range(400):
            await first.append(*(committed(number, partition=key) for key in range(keys)))
        written = 400 * keys * sum(len(part or b"") for part in encode_record(committed(0)))
        second, third = await opened.stranger(), await opened.stranger()
        await second.load()
        await second.append(committed(400, partition=0))
        await third.load()
        await third.append(committed(401, partition=1))
        while size() > written / 4:  # the cleaner may have been there already
            await third.append(committed(401, partition=1))
            await asyncio.sleep(0.3)  # segments are rolled by what is written later
        loaded = await third.load()
        found = {record.partition: record.offset for record in loaded if isinstance(record, OffsetCommitted)}
        assert found == {0: 400, 1: 401} | dict.fromkeys(range(2, keys), 399)
        current = third.journal._current
        assert current is not None
        owners = [owner.journal.metrics.producer_id for owner in (first, second, third)]
        assert sorted(current._decoding.authors.fences) == sorted([FIRST, *owners])
        for deposed in (first, second):
            with pytest.raises(FencedError):
                await deposed.append(committed(999))

    run(apache_kafka, test, settings(topic=topic))


# -- what others see


def test_kafkas_own_dump_reads_the_journal(apache_kafka: ApacheKafka) -> None:
    chosen = settings()

    async def test(opened: Cluster) -> None:
        holder = await opened.holder()
        await holder.load()
        await holder.append(*RECORDS)
        await holder.append()

    run(apache_kafka, test, chosen)
    folder = apache_kafka.log_dir / f"{chosen.topic}-0"
    tools = apache_kafka.tools
    files = ",".join(str(path) for path in sorted(folder.glob("*.log")))
    plain = tools.run(tools.DUMP_LOG, "--deep-iteration", "--files", files)
    assert "isvalid: false" not in plain.stdout
    out = tools.run(tools.DUMP_LOG, "--offsets-decoder", "--files", files).stdout
    assert "Error" not in out
    assert "Could not" not in out
    assert out.count("Unknown record type 10003") == 3
    for words in (
        '"group":"g","topic":"t","partition":3',
        '"generation":3,"protocol":"range","leader":"m1"',
        "Unknown record type 10000",
    ):
        assert words in out
