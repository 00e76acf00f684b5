"""The topics whose metadata a producer asks for, and which topics clients create, in virtual time."""

from __future__ import annotations

from typing import Any

import pytest

from kohort.client.consumer.core import ConsumerCore
from kohort.client.producer.accumulator import WouldBlock
from kohort.client.producer.core import TOPIC_CREATION_MS, ProducerCore, producer_config
from kohort.client.producer.sender import METADATA_IDLE_MS
from kohort.errors import InvalidInputError, TimedOutError
from kohort.wire.data import ProduceRequest, ProduceResponse
from kohort.wire.transactions import InitProducerIdResponse
from tests.client.virtual import PARK, VirtualCluster
from tests.client.written_log import carry_out


class World:
    """A producer of a virtual cluster whose broker creates topics that a request may create."""

    def __init__(self, *topics: str, **settings: Any) -> None:
        self.cluster = VirtualCluster(topics=dict.fromkeys(topics, 1))
        handlers = self.cluster.handlers
        handlers["InitProducerId"] = lambda message, version: InitProducerIdResponse(producer_id=7, producer_epoch=0)
        handlers["Produce"] = self.produce
        self.metadata, handlers["Metadata"] = handlers["Metadata"], self.create
        config = producer_config("127.0.0.1:9092", settings)
        self.core = ProducerCore(
            self.cluster.cluster, config, lambda step: step(), clock_ms=lambda: self.cluster.runtime.now_ms
        )

    def create(self, message: Any, version: int) -> Any:
        if message.allow_auto_topic_creation:
            for topic in message.topics or ():
                self.cluster.topics.setdefault(topic.name, 1)
        return self.metadata(message, version)

    def produce(self, message: ProduceRequest, version: int) -> ProduceResponse:
        result = ProduceResponse.TopicProduceResponse
        return ProduceResponse(
            responses=[
                result(
                    name=topic.name,
                    partition_responses=[
                        result.PartitionProduceResponse(
                            index=part.index, error_code=0 if topic.name in self.cluster.topics else 3, base_offset=0
                        )
                        for part in topic.partition_data
                    ],
                )
                for topic in message.topic_data
            ]
        )

    def send(self, topic: str) -> Any:
        self.cluster.call(self.core.partitions_for(topic))
        delivery = self.core.send(topic, b"x", None, 0, None, (), None)
        self.pass_ms(1_000)
        return delivery

    def pass_ms(self, ms: float) -> None:
        self.cluster.run(self.cluster.runtime.now_ms + ms)

    def asked(self) -> list[set[str]]:
        """Return the topics of each Metadata request, and forget the requests."""
        found = [{topic.name for topic in request.message.topics} for request in self.cluster.sent("Metadata")]
        self.cluster.requests.clear()
        return found


def test_producer_does_not_bring_a_deleted_topic_back_that_it_no_longer_uses() -> None:
    world = World("old", "new")
    assert world.send("old").result(timeout_ms=0).offset == 0
    del world.cluster.topics["old"]
    for _ in range(20):
        world.send("new")
        world.pass_ms(60_000)
    assert world.cluster.topics.keys() == {"new"}


@pytest.mark.parametrize("is_added", [True, False], ids=["added", "missing"])
def test_partition_that_the_broker_does_not_know_yet_is_waited_for(is_added: bool) -> None:
    world = World("a")
    world.send("a")
    with pytest.raises(WouldBlock) as blocked:
        world.core.send("a", b"x", None, 2, None, (), None)
    began_ms = world.cluster.runtime.now_ms
    waiting = world.cluster.runtime.spawn(blocked.value.wait(began_ms + 60_000))
    world.pass_ms(300)
    assert not waiting.done
    if not is_added:
        with pytest.raises(InvalidInputError, match="a has 1 partitions, there is no partition 2"):
            world.cluster.finish(waiting)
        assert world.cluster.runtime.now_ms - began_ms <= TOPIC_CREATION_MS
        return
    world.cluster.topics["a"] = 3
    world.cluster.finish(waiting)
    delivery = blocked.value.again()
    world.pass_ms(1_000)
    assert delivery.result(timeout_ms=0).partition == 2


def test_producer_asks_only_for_topics_that_it_uses() -> None:
    world = World("old", "new")
    world.send("old")
    world.send("new")
    world.pass_ms(METADATA_IDLE_MS)
    world.asked()
    for _ in range(8):
        world.send("new")
        world.pass_ms(60_000)
    asked = world.asked()
    assert asked and all("old" not in topics for topics in asked)
    assert world.send("old").result(timeout_ms=0).offset == 0
    assert {"new", "old"} in world.asked(), "after a pause its metadata may be outdated"


def test_deleted_topic_with_records_to_send_is_created_again() -> None:
    world = World("a")
    world.send("a")
    del world.cluster.topics["a"]
    assert world.send("a").result(timeout_ms=0).offset == 0
    assert world.cluster.topics == {"a": 1}


def test_metadata_of_a_deleted_topic_is_asked_for_at_the_pace_of_retries() -> None:
    world = World("a")
    world.send("a")
    del world.cluster.topics["a"]
    world.cluster.handlers["Metadata"] = world.metadata
    delivery = world.core.send("a", b"x", None, 0, None, (), None)
    world.pass_ms(1_000)
    world.asked()
    world.pass_ms(10_000)
    per_retry = 2  # a refresh, and a request that may create the topic
    assert len(world.asked()) <= per_retry * (10_000 / world.core.config.retry_backoff_ms + 1)
    world.cluster.topics["a"] = 1
    world.pass_ms(1_000)
    assert delivery.result(timeout_ms=0).offset == 0


def test_partition_without_a_leader_is_asked_for_at_the_longest_backoff_and_sent_to_when_it_has_one() -> None:
    world = World("a")
    world.send("a")
    leaders = [-1]

    def name_leader(message: Any, version: int) -> Any:
        response = world.metadata(message, version)
        for part in [part for topic in response.topics for part in topic.partitions]:
            part.leader_id = leaders[0]
        return response

    world.cluster.handlers["Metadata"] = name_leader
    world.cluster.call(world.cluster.cluster.refresh_metadata())
    delivery = world.core.send("a", b"x", None, 0, None, (), None)
    world.pass_ms(20_000)
    world.asked()
    world.pass_ms(60_000)
    assert len(world.asked()) <= 61
    leaders[0] = 1
    world.pass_ms(1_500)
    assert delivery.result(timeout_ms=0).offset == 0


def test_record_without_a_key_goes_to_a_partition_that_the_topic_still_has() -> None:
    """The topic was deleted and created again with fewer partitions while a batch was open."""
    world = World("a")
    world.cluster.topics["a"] = 8
    world.cluster.call(world.core.partitions_for("a"))
    while not world.core.send("a", b"x", None, None, None, (), None)._batch.partition.partition:
        world.pass_ms(1_000)
    world.cluster.topics["a"] = 1
    world.cluster.finish(world.cluster.cluster.request_metadata())
    delivery = world.core.send("a", b"x", None, None, None, (), None)
    world.pass_ms(1_000)
    assert delivery.result(timeout_ms=0).partition == 0


@pytest.mark.parametrize("numbers", [[7], [0, 2], [-1, 0], [1, 2]], ids=str)
def test_topic_whose_partitions_have_gaps_is_asked_for_again(numbers: list[int]) -> None:
    """A broker at fault, or one that lies: a producer spreads records over partitions 0 to n - 1."""
    world = World("a")
    world.cluster.topics["a"] = len(numbers)

    def number_anew(message: Any, version: int) -> Any:
        answer = world.metadata(message, version)
        for part, number in zip(answer.topics[0].partitions, numbers, strict=True):
            part.partition_index = number
        return answer

    world.cluster.handlers["Metadata"] = number_anew
    with pytest.raises(TimedOutError, match="topic a"):
        world.cluster.call(world.core.partitions_for("a"))
    world.cluster.handlers["Metadata"] = world.metadata
    assert world.send("a").result(timeout_ms=0).offset == 0


def test_consumer_with_a_pattern_brings_no_deleted_topic_back() -> None:
    """The pattern matches topics that there are; requests that name one of them must not create it again."""
    world = VirtualCluster(settings={"group_id": "g"}, topics={"a": 1})
    core = ConsumerCore(world.cluster, world.config)
    core.subscribe(pattern="a")
    world.call(world.cluster.describe_topics(["a"]))
    asked = world.sent("Metadata")
    assert asked and not any(request.message.allow_auto_topic_creation for request in asked)
    carry_out(world, core.unsubscribe())
    core.subscribe(["a"])
    world.call(world.cluster.describe_topics(["a"]))
    assert world.sent("Metadata")[-1].message.allow_auto_topic_creation


def test_record_whose_request_is_not_answered_fails_when_its_time_is_over() -> None:
    """A request that begins shortly before may be answered long after; then its answer changes nothing."""
    world = World("a")
    world.send("a")
    config, runtime = world.core.config, world.cluster.runtime
    world.cluster.handlers["Produce"] = lambda message, version: PARK
    began_ms = runtime.now_ms
    delivery = world.core.send("a", b"x", None, 0, None, (), None)
    while not delivery.done():
        world.pass_ms(100)
    assert runtime.now_ms - began_ms == pytest.approx(config.delivery_timeout_ms, abs=200)
    with pytest.raises(TimedOutError, match="within 120000 ms, may have been written: .* no answer from"):
        delivery.result(timeout_ms=0)
    late = world.cluster.parked_named("Produce")[-1]
    world.cluster.answer(late, world.produce(late.message, late.version))
    world.cluster.handlers["Produce"] = world.produce
    assert world.send("a").result(timeout_ms=0).offset == 0
    assert delivery.exception(timeout_ms=0) is not None


def test_producer_that_waits_for_a_topic_warns_that_it_does_not_exist(caplog: pytest.LogCaptureFixture) -> None:
    """The program said nothing for a minute, until `max.block.ms` was over."""
    world = World()
    world.cluster.handlers["Metadata"] = world.metadata  # the broker creates no topics by itself
    with pytest.raises(TimedOutError):
        world.cluster.call(world.core.partitions_for("ordres"))
    warned = [record.getMessage() for record in caplog.records if "does not exist" in record.getMessage()]
    assert 1 <= len(warned) <= 10
    assert set(warned) == {"topic 'ordres' does not exist: records for it wait for it to be created; retrying"}


def test_producer_does_not_warn_of_a_topic_that_the_cluster_is_creating(caplog: pytest.LogCaptureFixture) -> None:
    world = World()

    def create_late(message: Any, version: int) -> Any:
        if world.cluster.runtime.now_ms > began_ms + TOPIC_CREATION_MS - 100:
            world.cluster.topics["orders"] = 1
        return world.metadata(message, version)

    began_ms = world.cluster.runtime.now_ms
    world.cluster.handlers["Metadata"] = create_late
    assert world.cluster.call(world.core.partitions_for("orders"))
    assert "orders" not in caplog.text
