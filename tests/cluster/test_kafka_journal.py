"""The journal on a real Apache Kafka: what owners write is read by the next, and the last one is kept out."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable

import pytest

from kohort.cluster.journal_place import JournalSettings
from kohort.errors import FencedError
from tests.cluster.journals import Cluster, cluster, committed, groups_of
from tests.support.apache_kafka import ApacheKafka

pytestmark = pytest.mark.kafka


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
        assert first.journal.figures.epoch == second.journal.figures.epoch + 1

    run(apache_kafka, test)
