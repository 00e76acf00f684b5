"""How often a broker looks after its data, and that it says which of Kafka's settings it ignores."""

from __future__ import annotations

import warnings

import pytest

from kohort import Admin, Broker, Consumer, Producer
from kohort.client.admin.values import NewTopic
from kohort.ids import TopicPartition
from tests.support.waiting import until

IGNORED = {"num.io.threads": 3, "fetch.purgatory.purge.interval.requests": 5, "ssl.protocol": "TLSv1.3"}
NAMED = "ignores: fetch.purgatory.purge.interval.requests, num.io.threads, ssl.protocol$"


def test_retention_takes_records_at_the_interval_that_is_set() -> None:
    """A test of retention waits for one interval, not for five minutes."""
    with Broker(config={"log.retention.check.interval.ms": 100}) as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("brief", 1, configs={"retention.ms": "1"})]).all()
        with Producer(broker.bootstrap_servers) as producer:
            producer.send("brief", value="soon gone", partition=0).result()
        with Consumer(broker.bootstrap_servers) as consumer:
            part = TopicPartition("brief", 0)
            until(lambda: consumer.beginning_offsets([part])[part] == 1, "retention took the record", 20)
            assert consumer.end_offsets([part])[part] == 1


def test_broker_warns_of_settings_that_it_ignores() -> None:
    with pytest.warns(UserWarning, match=NAMED) as warned, Broker(config=IGNORED):
        pass
    assert len(warned) == 1
    assert warned[0].filename == __file__, "the warning names the caller's line"


def test_broker_that_ignores_nothing_warns_of_nothing() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with Broker(config={"log.retention.check.interval.ms": 500, "num.partitions": 2}) as broker:
            broker.restart()
