"""Every call of the administration, blocking and in asyncio, against our broker and a real Apache Kafka."""

from __future__ import annotations

import asyncio
import inspect
import os
import pickle
import threading
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from kohort import Admin, AsyncAdmin, Broker, Consumer, Producer, TopicPartition
from kohort.broker.server.fault_kinds import Fault
from kohort.client.admin.values import ConfigResource, NewTopic, ResourceType, TransactionDescription
from kohort.client.offsets import OffsetAndMetadata
from kohort.errors import (
    CommitFailedError,
    ErrorCode,
    FencedError,
    InvalidInputError,
    KafkaError,
    NotFoundError,
    TimedOutError,
)
from tests.support.waiting import until

QUICK = {"heartbeat_interval_ms": 200, "enable_auto_commit": False}


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    with Broker(config={"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


@pytest.fixture(params=["own", pytest.param("apache", marks=pytest.mark.kafka)])
def servers(request: pytest.FixtureRequest) -> str:
    fixture = "own_broker" if request.param == "own" else "apache_kafka"
    return str(request.getfixturevalue(fixture).bootstrap_servers)


class Blocked:
    """An AsyncAdmin whose calls are made from another thread than its loop's.

    So both faces pass the same tests.
    """

    def __init__(self, servers: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._admin = self._run(self._made(servers))

    async def _made(self, servers: str) -> AsyncAdmin:
        return AsyncAdmin(servers)

    def _run(self, coro: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coro, self._loop).result(60)

    def __getattr__(self, name: str) -> Any:
        return lambda *args, **kwargs: self._run(getattr(self._admin, name)(*args, **kwargs))

    def end(self) -> None:
        self._run(self._admin.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(params=["blocking", "asyncio"])
def admin(request: pytest.FixtureRequest, servers: str) -> Iterator[Admin]:
    if request.param == "blocking":
        with Admin(servers) as admin:
            yield admin
    else:
        blocked = Blocked(servers)
        yield blocked  # type: ignore[misc]
        blocked.end()


@pytest.fixture
def topic(admin: Admin) -> str:
    name = f"admin-{uuid.uuid4().hex[:8]}"
    admin.create_topics([NewTopic(name, 3)]).all()
    until(lambda: not admin.describe_topics([name]).errors, "Kafka's broker has heard of it from its controller", 30)
    return name


def fill(servers: str, topic: str, count: int = 10, **settings: Any) -> None:
    """Records with times 1000, 2000 … in partition 0."""
    with Producer(servers, **settings) as producer:
        for number in range(1, count + 1):
            producer.send(topic, b"%d" % number, partition=0, timestamp_ms=number * 1000)


def test_topics(admin: Admin, topic: str) -> None:
    other = f"{topic}-other"
    dry = admin.create_topics([NewTopic(other, 2), NewTopic(topic, 1)], validate_only=True)
    assert list(dry.values) == [other]
    assert dry.errors[topic].code is ErrorCode.TOPIC_ALREADY_EXISTS
    assert other not in [info.name for info in admin.list_topics()]
    made = admin.create_topics([NewTopic(other, 2, configs={"retention.ms": "12345"}), NewTopic("no / name", 1)])
    assert made.result(other).num_partitions == 2
    with pytest.raises(InvalidInputError):
        made.result("no / name")
    with pytest.raises(InvalidInputError, match="was not part of the call"):
        made.result("something else")
    admin.create_partitions({other: 5}).all()

    def partitions() -> int:
        found = admin.describe_topics([other])
        return len(found.result(other).partitions) if other in found.values else 0

    until(lambda: partitions() == 5, "all brokers know the partitions")
    found = admin.describe_topics([other, "nowhere"])
    assert list(found.values) == [other]
    assert isinstance(found.errors["nowhere"], NotFoundError)
    assert {topic, other} <= {info.name for info in admin.list_topics()}
    gone = admin.delete_topics([other, "nowhere"])
    assert list(gone.values) == [other]
    assert list(gone.errors) == ["nowhere"]


def test_configs_of_brokers_that_are_not_there_hide_no_other(admin: Admin, topic: str) -> None:
    """A name that is no number was a bare ValueError, and a number that the cluster lacks cost all results."""
    resource = ConfigResource(ResourceType.TOPIC, topic)
    no_number, no_node = (ConfigResource(ResourceType.BROKER, name) for name in ("abc", "99"))
    found = admin.describe_configs([no_number, no_node, resource])
    assert list(found.values) == [resource]
    assert isinstance(found.errors[no_number], InvalidInputError)
    assert found.errors[no_node].code is ErrorCode.BROKER_NOT_AVAILABLE
    changed = admin.incremental_alter_configs({no_node: {"log.cleaner.threads": "1"}, resource: {"retention.ms": "9"}})
    assert list(changed.values) == [resource] and list(changed.errors) == [no_node]


def test_configs_of_several_absent_brokers_cost_one_refresh_of_the_metadata() -> None:
    with Broker() as broker, Admin(broker.bootstrap_servers) as admin:
        admin.list_topics()
        before = admin._core.metadata.updates
        absent = [ConfigResource(ResourceType.BROKER, str(node)) for node in range(90, 99)]
        assert len(admin.describe_configs(absent).errors) == len(absent)
        assert admin._core.metadata.updates == before + 1


def test_what_is_known_when_the_time_is_over_is_returned() -> None:
    """One group without a coordinator cost the results of all others."""
    with Broker() as broker, Admin(broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("t", 1)]).all()
        at = TopicPartition("t", 0)
        for group in ("free", "stuck"):
            admin.alter_consumer_group_offsets(group, {at: OffsetAndMetadata(0)}).all()
        error = ErrorCode.COORDINATOR_NOT_AVAILABLE
        broker.faults.add(Fault("FindCoordinator", "fail", client_id="late", skip=1, times=None, error=error))
        with Admin(broker.bootstrap_servers, client_id="late") as other:
            found = other.describe_consumer_groups(["free", "stuck"], timeout_ms=2_000)
            assert list(found.values) == ["free"] and isinstance(found.errors["stuck"], TimedOutError)
            with pytest.raises(TimedOutError):
                other.describe_consumer_groups(["stuck"], timeout_ms=500)


def test_configs(admin: Admin, topic: str) -> None:
    resource = ConfigResource(ResourceType.TOPIC, topic)
    broker = ConfigResource(ResourceType.BROKER, str(admin.describe_cluster().nodes[0].id))
    before = admin.describe_configs([resource, broker, ConfigResource(ResourceType.TOPIC, "nowhere")])
    assert before.result(resource)["cleanup.policy"].is_default
    assert before.result(broker)["num.partitions"].value
    assert len(before.errors) == 1
    change = {"retention.ms": "777", "cleanup.policy": "compact"}
    admin.incremental_alter_configs({resource: change}, validate_only=True).all()
    admin.incremental_alter_configs({resource: change}).all()
    admin.incremental_alter_configs({resource: {"cleanup.policy": None}}).all()

    def entries() -> tuple[Any, Any]:
        found = admin.describe_configs([resource]).result(resource)
        return found["retention.ms"].value, found["cleanup.policy"].is_default

    until(lambda: entries() == ("777", True), "the configuration is changed")
    with pytest.raises(InvalidInputError):
        admin.incremental_alter_configs({resource: {"retention.ms": "soon"}}).all()


def test_group_configs(admin: Admin) -> None:
    group = ConfigResource(ResourceType.GROUP, f"g-{uuid.uuid4().hex[:8]}")
    admin.incremental_alter_configs({group: {"consumer.session.timeout.ms": "50000"}}).all()

    def reported() -> bool:
        return admin.describe_configs([group]).result(group)["consumer.session.timeout.ms"].value == "50000"

    until(reported, "the group's configuration is changed")


def test_groups_session_must_be_longer_than_its_heartbeat_interval() -> None:
    limits = {"group.consumer.min.session.timeout.ms": 1_000, "group.consumer.min.heartbeat.interval.ms": 1_000}
    group = ConfigResource(ResourceType.GROUP, "g")
    with Broker(config=limits) as broker, Admin(broker.bootstrap_servers) as admin:
        for wrong in ({"consumer.session.timeout.ms": "5000"}, {"consumer.session.timeout.ms": "4000"}):
            with pytest.raises(InvalidInputError, match="must be greater than consumer.heartbeat.interval.ms"):
                admin.incremental_alter_configs({group: wrong}).all()
        both: dict[str, str | None] = {
            "consumer.session.timeout.ms": "4000",
            "consumer.heartbeat.interval.ms": "1000",
        }
        admin.incremental_alter_configs({group: both}).all()
        with pytest.raises(InvalidInputError, match="must be greater"):
            admin.incremental_alter_configs({group: {"consumer.heartbeat.interval.ms": None}}).all()


def test_records(admin: Admin, servers: str, topic: str) -> None:
    fill(servers, topic)
    place = TopicPartition(topic, 0)
    missing = TopicPartition(topic, 9)

    def offset(spec: Any) -> int:
        return admin.list_offsets({place: spec}).partition_result(place).offset

    assert [offset(spec) for spec in ("earliest", "latest", 4500, "max_timestamp", 99_000)] == [0, 10, 4, 9, -1]
    deleted = admin.delete_records({place: 3, missing: 1})
    assert deleted.partition_result(place) == 3
    assert isinstance(deleted.errors[missing], NotFoundError)
    assert offset("earliest") == 3
    with pytest.raises(KafkaError, match=rf"records of {place} before offset 11: .* \[OFFSET_OUT_OF_RANGE\]"):
        admin.delete_records({place: 11}).all()
    assert admin.delete_records({place: -1}).all() == {place: 10}
    with pytest.raises(InvalidInputError, match="yesterday"):
        admin.list_offsets({place: "yesterday"})  # type: ignore[dict-item]


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_groups(admin: Admin, servers: str, topic: str, protocol: str) -> None:
    group = f"{topic}-{protocol}"
    place = TopicPartition(topic, 0)
    with Consumer(servers, group_id=group, group_protocol=protocol, client_id="seen", **QUICK) as consumer:
        consumer.subscribe([topic])

        def joined() -> bool:
            consumer.poll(50)
            return len(consumer.assignment()) == 3

        until(joined, "the consumer has its partitions", 30)
        consumer.commit({place: 0})
        kind = "Classic" if protocol == "classic" else "Consumer"
        until(
            lambda: group in [listed.group_id for listed in admin.list_groups(states=["stable"], types=[kind])],
            "listed",
        )
        assert group not in [listed.group_id for listed in admin.list_groups(states=["Empty"])]
        found = admin.describe_consumer_groups([group, "nowhere"])
        described = found.result(group)
        assert (described.type, described.state, len(described.members)) == (kind, "Stable", 1)
        (member,) = described.members
        assert member.client_id == "seen"
        assert member.assignment == tuple(TopicPartition(topic, number) for number in range(3))
        assert isinstance(found.errors["nowhere"], NotFoundError)
        assert admin.delete_consumer_groups([group]).errors[group].code is ErrorCode.NON_EMPTY_GROUP
        kept = admin.delete_consumer_group_offsets(group, [place])
        with pytest.raises(InvalidInputError, match="GROUP_SUBSCRIBED_TO_TOPIC"):
            kept.partition_result(place)
        with pytest.raises(CommitFailedError):
            admin.alter_consumer_group_offsets(group, {place: OffsetAndMetadata(5)}).all()
    assert admin.delete_consumer_groups([group, "nowhere"]).values == {group: None}


def test_group_offsets(admin: Admin, servers: str, topic: str) -> None:
    group = f"{topic}-offsets"
    places = [TopicPartition(topic, number) for number in range(3)]
    offsets = {place: OffsetAndMetadata(place.partition + 1, "by hand") for place in places}
    admin.alter_consumer_group_offsets(group, offsets).all()
    assert admin.list_consumer_group_offsets(group).all() == offsets
    some = admin.list_consumer_group_offsets(group, [places[0], TopicPartition(topic, 7)], require_stable=True).all()
    assert some == {places[0]: offsets[places[0]], TopicPartition(topic, 7): None}
    deleted = admin.delete_consumer_group_offsets(group, places[:2])
    assert deleted.all() == dict.fromkeys(places[:2])
    assert deleted.partition_result(places[1]) is None
    assert list(admin.list_consumer_group_offsets(group).all()) == places[2:]
    unknown = admin.delete_consumer_group_offsets("nowhere", places)
    with pytest.raises(NotFoundError):
        unknown.all()
    with pytest.raises(NotFoundError):
        unknown.partition_result(places[2])


@pytest.mark.parametrize("who", ["static", "all"])
def test_members_are_removed(admin: Admin, servers: str, topic: str, who: str) -> None:
    group = f"{topic}-{who}"
    instance = "first" if who == "static" else None
    with Consumer(servers, group_id=group, group_instance_id=instance, **QUICK) as consumer:
        consumer.subscribe([topic])
        until(lambda: bool(consumer.poll(50) or consumer.assignment()), "the consumer has its partitions", 30)
        if who == "static":
            out = admin.remove_members_from_consumer_group(group, ["first", "second"])
            assert out.values == {"first": None}
            assert out.errors["second"].code is ErrorCode.UNKNOWN_MEMBER_ID
        else:
            assert len(admin.remove_members_from_consumer_group(group).all()) == 1
        assert admin.describe_consumer_groups([group]).result(group).members == ()
    assert admin.remove_members_from_consumer_group(group).all() == {}


def test_cluster(admin: Admin, servers: str) -> None:
    cluster = admin.describe_cluster()
    assert cluster.cluster_id
    assert [f"{node.host}:{node.port}" for node in cluster.nodes] == [servers]
    assert cluster.controller_id in [node.id for node in cluster.nodes]
    version = admin.describe_features()["transaction.version"]
    assert (version.level, version.highest) == (2, 2)


@pytest.mark.kafka
def test_log_dirs_and_features_of_apache_kafka(apache_kafka: Any) -> None:
    servers = apache_kafka.bootstrap_servers
    topic = f"dirs-{uuid.uuid4().hex[:8]}"
    with Admin(servers) as admin:
        admin.create_topics([NewTopic(topic, 1)]).all()
        fill(servers, topic)
        (node,) = admin.describe_cluster().nodes
        found = admin.describe_log_dirs()
        (place,) = found.result(node.id).values()
        assert place.error is None
        assert place.replicas[TopicPartition(topic, 0)].size > 100
        assert place.total_bytes > place.usable_bytes > 0
        assert admin.describe_log_dirs([99]).errors[99].code is ErrorCode.BROKER_NOT_AVAILABLE
        level = admin.describe_features()["group.version"].level
        admin.update_features({"group.version": level}, validate_only=True).all()
        with pytest.raises(KafkaError, match="nonsense"):
            admin.update_features({"nonsense": 5}).all()


def test_transactions(admin: Admin, servers: str, topic: str) -> None:
    place = TopicPartition(topic, 0)
    with Producer(servers, transactional_id=topic) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open", partition=0).result(timeout_ms=20_000)

        def described() -> TransactionDescription:
            return admin.describe_transactions([topic]).result(topic)

        assert described().state == "Ongoing"
        assert described().partitions == (place,)
        assert time.time() * 1000 - (described().started_ms or 0) < 60_000
        listed = admin.list_transactions(states=["Ongoing"], producer_ids=[described().producer_id], open_for_ms=0)
        assert [transaction.transactional_id for transaction in listed] == [topic]
        assert admin.list_transactions(states=["Ongoing"], open_for_ms=3_600_000) == []
        with pytest.raises(InvalidInputError, match="Sleeping"):
            admin.list_transactions(states=["Sleeping"])
        assert isinstance(admin.describe_transactions(["nobody"]).errors["nobody"], NotFoundError)
        (state,) = admin.describe_producers([place]).partition_result(place)
        assert (state.producer_id, state.open_since_offset) == (described().producer_id, 0)
        fenced = admin.fence_producers([topic]).result(topic)
        assert fenced.epoch > producer.epoch
        assert described().timeout_ms >= 10_000  # a coordinator with replicas waits so long for them: KAFKA-16047
        with pytest.raises(FencedError):
            producer.commit_transaction()
    until(lambda: admin.describe_producers([place]).partition_result(place)[0].open_since_offset is None, "ended")
    missing = TopicPartition(topic, 9)
    assert isinstance(admin.describe_producers([missing]).errors[missing], NotFoundError)


@pytest.mark.kafka
def test_a_hanging_transaction_is_aborted(apache_kafka: Any) -> None:
    servers = apache_kafka.bootstrap_servers
    topic = f"hanging-{uuid.uuid4().hex[:8]}"
    place = TopicPartition(topic, 0)
    with Admin(servers) as admin, Producer(servers, transactional_id=topic) as producer:
        admin.create_topics([NewTopic(topic, 1)]).all()
        assert [transaction.transactional_id for transaction in admin.list_transactions(pattern="hanging-never")] == []
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"open").result(timeout_ms=20_000)
        assert [transaction.transactional_id for transaction in admin.list_transactions(pattern=f"{topic[:12]}.*")] == [
            topic
        ]
        (state,) = admin.describe_producers([place]).partition_result(place)
        admin.abort_transaction(place, state)
        (after,) = admin.describe_producers([place]).partition_result(place)
        assert after.open_since_offset is None
        stable = admin.list_offsets({place: "latest"}, isolation_level="read_committed").partition_result(place)
        assert stable.offset == 2


def test_an_unreachable_cluster_names_addresses_and_reasons() -> None:
    servers = "127.0.0.1:1,no-such-host.invalid:9092"
    with Admin(servers, default_api_timeout_ms=5_000) as admin, pytest.raises(TimedOutError) as caught:
        admin.list_topics()
    assert "127.0.0.1:1: connection refused" in str(caught.value)
    assert "no-such-host.invalid:9092: the name can't be resolved" in str(caught.value)


def test_a_forked_child_is_refused(own_broker: Broker) -> None:
    with Admin(own_broker.bootstrap_servers) as admin:
        admin.list_topics()
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                admin.list_topics()
                said = "nothing"
            except KafkaError as error:
                said = str(error)
            admin.close()
            os.write(writer, said.encode())
            os._exit(0)
        os.close(writer)
        assert "made before a fork" in os.read(reader, 1000).decode()
        os.close(reader)
        os.waitpid(child, 0)
        assert admin.describe_cluster().nodes


def test_a_pickle_is_refused_and_a_closed_one_says_so(own_broker: Broker) -> None:
    with Admin(own_broker.bootstrap_servers) as admin:
        admin.list_topics()
        with pytest.raises(TypeError, match="pickled"):
            pickle.dumps(admin)
    with pytest.raises(KafkaError, match="closed"):
        admin.list_topics()
    admin.close()


def test_both_faces_have_the_same_calls() -> None:
    def calls(face: type) -> dict[str, str]:
        return {
            name: str(inspect.signature(value))
            for name, value in vars(face).items()
            if not name.startswith("_") and name != "close"
        }

    assert {name: text.rpartition(" -> ")[0] for name, text in calls(Admin).items()} == {
        name: text.rpartition(" -> ")[0] for name, text in calls(AsyncAdmin).items()
    }
    assert len(calls(Admin)) > 25
    for name in calls(Admin):
        assert getattr(Admin, name).__doc__, name
        assert "timeout_ms" in inspect.signature(getattr(Admin, name)).parameters, name
