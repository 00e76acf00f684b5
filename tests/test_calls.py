"""Arguments that public calls refuse. No broker: the refusal comes before anything is sent."""

from __future__ import annotations

import asyncio
import datetime
import inspect
from collections import namedtuple
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from kohort import (
    Admin,
    AsyncAdmin,
    AsyncConsumer,
    AsyncProducer,
    Broker,
    ConfigResource,
    Consumer,
    ErrorCode,
    InvalidInputError,
    KafkaError,
    NewTopic,
    OffsetAndMetadata,
    Producer,
    Records,
    TopicPartition,
)
from kohort.client import settings
from kohort.region import Region
from kohort.settings.arguments import checks_arguments

NOWHERE = "127.0.0.1:1"
TP = TopicPartition("t", 0)
TheirPartition = namedtuple("TopicPartition", "topic partition offset")  # noqa: PYI024 - as confluent-kafka has one
LIMITS: Any = {"default_api_timeout_ms": 300, "socket_connection_setup_timeout_ms": 100}


@pytest.fixture
def clients() -> Iterator[dict[str, Any]]:
    """A client of each kind for which there is no broker."""
    with (
        Consumer(NOWHERE, group_id="g", **LIMITS) as consumer,
        Producer(NOWHERE, max_block_ms=300, **LIMITS) as producer,
        Admin(NOWHERE, **LIMITS) as admin,
    ):
        yield {"consumer": consumer, "producer": producer, "admin": admin}


ADMIN = [
    (lambda a: a.delete_topics("abc"),
     r"Admin\.delete_topics: topics must be a list of str, not 'abc'; write \['abc'\]"),
    (lambda a: a.delete_consumer_groups("p1"), r"groups must be a list of str, not 'p1'; write \['p1'\]"),
    (lambda a: a.describe_topics(b"abc"), r"topics must be a list of str, not b'abc'; write \['abc'\]"),
    (lambda a: a.delete_topics(["a", 5]), r"topics\[1\] must be str, not 5; write '5'"),
    (lambda a: a.delete_topics([b"a"]), r"topics\[0\] must be str, not b'a'; write 'a'"),
    (lambda a: a.delete_topics(5), r"topics must be a list of str, not 5"),
    (lambda a: a.delete_topics(), r"delete_topics: topics is missing"),
    (lambda a: a.list_groups(states="Stable"), r"states must be a list of str, not 'Stable'; write \['Stable'\]"),
    (lambda a: a.describe_consumer_groups(groups="g"), r"groups must be a list of str"),
    (lambda a: a.remove_members_from_consumer_group("g", "i"),
     r"group_instance_ids must be a list of str or None, not 'i'"),
    (lambda a: a.describe_user_scram_credentials("alice"), r"users must be a list of str or None, not 'alice'"),
    (lambda a: a.fence_producers("tx"), r"transactional_ids must be a list of str, not 'tx'"),
    (lambda a: a.create_topics("x"), r"topics must be a list of NewTopic, not 'x'; write \[NewTopic\('x'\)\]"),
    (lambda a: a.create_topics(["x"]), r"topics\[0\] must be NewTopic, not 'x'; write NewTopic\('x'\)"),
    (lambda a: a.create_topics(NewTopic("x")),
     r"topics must be a list of NewTopic, not NewTopic\('x'\); write \[NewTopic\('x'\)\]"),
    (lambda a: a.create_topics([{"name": "x"}]), r"topics\[0\] must be NewTopic, not .*; write NewTopic\(name='x'\)"),
    (lambda a: a.create_topics([NewTopic("x", "6")]), r"topics\[0\]\.num_partitions must be int, not '6'; write 6"),
    (lambda a: a.create_topics([NewTopic("x", configs={"retention.ms": 5})]),
     r"topics\[0\]\.configs\['retention.ms'\] must be str, not 5; write '5'"),
    (lambda a: a.create_topics([NewTopic("x", num_partitions=2**40)]),
     r"num_partitions must be from -1 to 2147483647, not"),
    (lambda a: a.create_partitions({"x": "6"}), r"totals\['x'\] must be int, not '6'"),
    (lambda a: a.create_partitions(["x"]), r"totals must be a dict of str to int, not \['x'\]"),
    (lambda a: a.alter_consumer_group_offsets({TP: 5}), r"group must be str, not .*; did you mean offsets="),
    (lambda a: a.alter_consumer_group_offsets("g", {TP: "5"}),
     r"offsets\[t-0\] must be OffsetAndMetadata or int, not '5'; write 5"),
    (lambda a: a.alter_consumer_group_offsets("g", {TP: -1}), r"offsets\[t-0\] must be at least 0, not -1"),
    (lambda a: a.alter_consumer_group_offsets("g", {TP: OffsetAndMetadata(5, None)}),
     r"offsets\[t-0\]\.metadata must be str, not None"),
    (lambda a: a.alter_consumer_group_offsets("g", {("t", 0): 5}),
     r"a key of offsets must be TopicPartition, not \('t', 0\); write TopicPartition\('t', 0\)"),
    (lambda a: a.delete_consumer_group_offsets("g", [("t", 0)]),
     r"partitions\[0\] must be TopicPartition, not \('t', 0\); write TopicPartition\('t', 0\)"),
    (lambda a: a.delete_consumer_group_offsets("g", TP),
     r"partitions must be a list of TopicPartition, not .*; write \[TopicPartition\('t', 0\)\]"),
    (lambda a: a.delete_consumer_group_offsets("g", [TheirPartition("t", 0, 7)]),
     r"must be kohort\.TopicPartition, not .*TopicPartition\(.*; write TopicPartition\('t', 0\)"),
    (lambda a: a.delete_consumer_group_offsets("g", [TopicPartition("t", "0")]),
     r"partitions\[0\]\.partition must be int, not '0'; write 0"),
    (lambda a: a.list_offsets({TP: "newest"}),
     r"wanted\[t-0\] must be 'earliest', 'latest', 'max_timestamp' or int, not 'newest'"),
    (lambda a: a.list_offsets({TP: datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)}),
     r"must be .* or int, not datetime.*; write 1704067200000"),
    (lambda a: a.describe_configs([("topic", "x")]),
     r"resources\[0\] must be ConfigResource, not \('topic', 'x'\); write ConfigResource\(ResourceType\.TOPIC, 'x'\)"),
    (lambda a: a.list_topics(timeout_ms=-1), r"timeout_ms must be from 0 to 2147483647, not -1"),
    (lambda a: a.list_topics(timeout_ms="5s"), r"timeout_ms must be a number or None, not '5s'"),
    (lambda a: a.list_topics(timeout_ms=datetime.timedelta(seconds=5)),
     r"timeout_ms must be a number or None, not .*; write 5000"),
    (lambda a: a.list_topics(timeout_ms=float("nan")), r"timeout_ms must be from 0 to 2147483647, not nan"),
    (lambda a: a.list_topics(timeout_ms=True), r"timeout_ms must be a number or None, not True"),
    (lambda a: a.list_topics(timeout=5),
     r"list_topics takes no timeout; did you mean timeout_ms\? It counts milliseconds: timeout_ms=5000"),
    (lambda a: a.list_topics(internl=True), r"list_topics takes no internl; did you mean internal\?"),
    (lambda a: a.delete_topics(["x"], operation_timeout=30),
     r"delete_topics takes no operation_timeout; .*timeout_ms=30000"),
    (lambda a: a.delete_topics(["x"], 5000),
     r"delete_topics takes 1 argument by position \(topics\), not 2; give timeout_ms by its name"),
    (lambda a: a.delete_topics(["x"], topics=["y"]), r"topics is given twice, by position and by name"),
    (lambda a: a.list_topics(internal=1), r"internal must be bool, not 1"),
    (lambda a: a.alter_user_scram_credentials(deletions=[("alice", "SCRAM-SHA-1")]),
     r"deletions\[0\]\[1\] must be 'SCRAM-SHA-256' or 'SCRAM-SHA-512', not 'SCRAM-SHA-1'"),
    (lambda a: a.alter_client_quotas({("user", "alice"): {}}),
     r"a key of changes must be a tuple of \(str, str or None\), not .*; write \(\('user', 'alice'\),\)"),
    (lambda a: a.describe_configs([ConfigResource(4, "1")]),
     r"resources\[0\]\.type must be ResourceType, not 4; write ResourceType\.BROKER"),
    (lambda a: a.list_offsets({TP: "latest"}, isolation_level="read_commited"),
     r"isolation_level must be .*, not 'read_commited'; write 'read_committed'"),
    (lambda a: a.alter_user_scram_credentials(["alice"]),
     r"upsertions\[0\] must be ScramCredential, not 'alice'; write ScramCredential\('alice', password\)"),
]  # fmt: skip

CONSUMER = [
    (lambda c: c.subscribe("flights"),
     r"Consumer\.subscribe: topics must be a list of str, not 'flights'; write \['flights'\]"),
    (lambda c: c.subscribe(["a"], on_assign=print),
     r"subscribe takes no on_assign; it takes topics, pattern, listener"),
    (lambda c: c.subscribe(["a"], listener=object()), r"listener must be RebalanceListener or None, not .*object"),
    (lambda c: c.subscribe([""]), r"topics\[0\] must be a name with at least one character, not ''"),
    (lambda c: c.assign("t"), r"partitions must be a list of TopicPartition, not 't'"),
    (lambda c: c.assign(TP),
     r"partitions must be a list of TopicPartition, not .*; write \[TopicPartition\('t', 0\)\]"),
    (lambda c: c.assign([("t", 0)]),
     r"partitions\[0\] must be TopicPartition, not \('t', 0\); write TopicPartition\('t', 0\)"),
    (lambda c: c.assign([TopicPartition("t", -1)]), r"partitions\[0\]\.partition must be from 0 to 2147483647, not -1"),
    (lambda c: c.poll(1.0),
     r"Consumer\.poll: timeout_ms counts milliseconds, and 1\.0 looks like seconds; write timeout_ms=1000"),
    (lambda c: c.poll(0.1), r"timeout_ms counts milliseconds, and 0\.1 looks like seconds; write timeout_ms=100"),
    (lambda c: c.poll(timeout=1.0),
     r"poll takes no timeout; did you mean timeout_ms\? It counts milliseconds: timeout_ms=1000"),
    (lambda c: c.poll(max_records=0), r"max_records must be at least 1, not 0"),
    (lambda c: c.poll_arrow(0.5), r"looks like seconds; write timeout_ms=500"),
    (lambda c: c.commit([TP]),
     r"offsets must be a dict of TopicPartition to OffsetAndMetadata or int, or None, not \["),
    (lambda c: c.commit({TP: "5"}), r"offsets\[t-0\] must be OffsetAndMetadata or int, not '5'; write 5"),
    (lambda c: c.commit({TP: True}), r"offsets\[t-0\] must be OffsetAndMetadata or int, not True"),
    (lambda c: c.commit(timeout_s=3),
     r"commit takes no timeout_s; did you mean timeout_ms\? It counts milliseconds: timeout_ms=3000"),
    (lambda c: c.commit(asynchronous=True), r"commit takes no asynchronous; it takes offsets, timeout_ms"),
    (lambda c: c.commit_async(callback="x"), r"callback must be a function or None, not 'x'"),
    (lambda c: c.committed(TP),
     r"partitions must be a list of TopicPartition, not .*; write \[TopicPartition\('t', 0\)\]"),
    (lambda c: c.position(("t", 0)),
     r"partition must be TopicPartition, not \('t', 0\); write TopicPartition\('t', 0\)"),
    (lambda c: c.seek(TP, -2), r"offset must be at least 0, not -2"),
    (lambda c: c.seek(TP, 5.5), r"offset must be int or OffsetAndMetadata, not 5\.5"),
    (lambda c: c.seek(TP), r"seek: offset is missing"),
    (lambda c: c.seek_to_times({TP: 1.5}), r"times\[t-0\] must be int, not 1\.5"),
    (lambda c: c.pause([TP]), r"partitions\[0\] must be TopicPartition, not \[.*; write pause\(\*partitions\)"),
    (lambda c: c.seek_to_beginning(("t", 0)),
     r"must be TopicPartition, not \('t', 0\); write TopicPartition\('t', 0\)"),
    (lambda c: c.end_offsets("t"), r"Consumer\.end_offsets: partitions must be a list of TopicPartition, not 't'"),
    (lambda c: c.partitions_of("t"), r"topics must be a list of str, not 't'; write \['t'\]"),
    (lambda c: c.partitions_for_topic(["t"]), r"topic must be str, not \['t'\]; write 't'"),
    (lambda c: c.close(5000), r"close takes no argument by position, not 1; give timeout_ms by its name"),
]  # fmt: skip

PRODUCER = [
    (lambda p: p.send(["t"], b"x"), r"send: topic must be str, not \['t'\]; write 't'"),
    (lambda p: p.send(b"t", b"x"), r"topic must be str, not b't'; write 't'"),
    (lambda p: p.send("", b"x"), r"topic must be a name with at least one character, not ''"),
    (lambda p: p.send("t", 5), r"a value is bytes, str or None, not int: give a value_serializer"),
    (lambda p: p.send("t", "\ud800"), r"the text has '.ud800', half of a surrogate pair, at character 0.* send bytes"),
    (lambda p: p.send("t", b"x", key="k\udc00"), r"half of a surrogate pair, at character 1"),
    (lambda p: p.send("t", b"x", headers=[("h", "\ud800")]), r"half of a surrogate pair, at character 0"),
    (lambda p: p.send("t", b"x", key=5), r"a key is bytes, str or None, not int: give a key_serializer"),
    (lambda p: p.send("t", b"x", partition="0"), r"partition must be int or None, not '0'; write 0"),
    (lambda p: p.send("t", b"x", partition=-1), r"partition must be from 0 to 2147483647, not -1"),
    (lambda p: p.send("t", b"x", timestamp_ms=1.5), r"timestamp_ms must be int or None, not 1\.5"),
    (lambda p: p.send("t", b"x", timestamp_ms=-1), r"timestamp_ms must be at least 0, not -1"),
    (
        lambda p: p.send("t", b"x", timestamp_ms=2**63),
        r"timestamp_ms must be from 0 to 9223372036854775807, not 9223372036854775808",
    ),
    (lambda p: p.send("t", b"x", timestamp_ms=datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC)),
     r"timestamp_ms must be int or None, not .*; write 1704067200000"),
    (lambda p: p.send("t", b"x", headers={"a": b"b"}),
     r"headers must be a list of \(str, bytes or None\), not \{'a': b'b'\}; write \[\('a', b'b'\)\]"),
    (lambda p: p.send("t", b"x", headers=[("a", "b")]),
     r"headers\[0\]\[1\] must be bytes or None, not 'b'; write b'b'"),
    (lambda p: p.send("t", b"x", headers="ab"), r"headers must be a list of \(str, bytes or None\), not 'ab'"),
    (lambda p: p.send("t", b"x", headers=[b"ab"]), r"headers\[0\] must be \(str, bytes or None\), not b'ab'"),
    (lambda p: p.send("t", b"x", on_delivery="x"), r"on_delivery must be a function or None, not 'x'"),
    (lambda p: p.send_arrow("t", [1]), r"Producer\.send_arrow: batch must be RecordBatch or Table, not \[1\]"),
    (lambda p: p.partitions_for(5), r"topic must be str, not 5"),
    (lambda p: p.flush(10), r"Producer\.flush takes no argument by position, not 1; give timeout_ms by its name"),
    (lambda p: p.flush(timeout_s=10),
     r"flush takes no timeout_s; did you mean timeout_ms\? It counts milliseconds: timeout_ms=10000"),
    (lambda p: p.close(timeout_s=10), r"close takes no timeout_s; .*timeout_ms=10000"),
    (lambda p: p.send_offsets_to_transaction({TP: 5}, 7), r"group must be str or GroupMetadata, not 7; write '7'"),
    (lambda p: p.send_offsets_to_transaction({TP: None}, "g"),
     r"offsets\[t-0\] must be OffsetAndMetadata or int, not None"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), [pytest.param(*row, id=row[1][:60]) for row in ADMIN])
def test_what_admin_can_not_take(clients: dict[str, Any], call: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        call(clients["admin"])


@pytest.mark.parametrize(("call", "text"), [pytest.param(*row, id=row[1][:60]) for row in CONSUMER])
def test_what_a_consumer_can_not_take(clients: dict[str, Any], call: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        call(clients["consumer"])


@pytest.mark.parametrize(("call", "text"), [pytest.param(*row, id=row[1][:60]) for row in PRODUCER])
def test_what_a_producer_can_not_take(clients: dict[str, Any], call: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text):
        call(clients["producer"])


@pytest.mark.parametrize(
    ("kind", "table"),
    [(AsyncAdmin, ADMIN), (AsyncConsumer, CONSUMER), (AsyncProducer, PRODUCER)],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_the_asyncio_faces_say_the_same(kind: Any, table: list[Any]) -> None:
    async def each() -> list[str]:
        settings = {**LIMITS, **({"group_id": "g"} if kind is AsyncConsumer else {})}
        unlike = []
        async with kind(NOWHERE, **settings) as client:
            for call, text in table:
                try:
                    given = call(client)
                    if inspect.isawaitable(given):
                        await asyncio.wait_for(given, 5)
                    said = "nothing"
                except AttributeError as error:  # what this face does not have, it need not refuse
                    said = "" if f"'{kind.__name__}' object has no attribute" in str(error) else repr(error)
                except (KafkaError, TypeError, TimeoutError) as error:
                    said = f"{type(error).__name__}: {error}"
                wanted = text.replace(kind.__name__.removeprefix("Async") + r"\.", kind.__name__ + r"\.")
                if said and not matches(wanted, said):
                    unlike.append(f"{said}  <>  {wanted}")
        return unlike

    assert asyncio.run(each()) == []


def matches(text: str, said: str) -> bool:
    import re

    return said.startswith("InvalidInputError") and re.search(text, said) is not None


SETTINGS = [
    (lambda: Consumer({"bootstrap.servers": "h:9092", "group.id": "g"}),
     r"settings are given by name, not as a dict; write bootstrap_servers='h:9092', group_id='g'"),
    (lambda: Consumer({"bootstrap.servers": "h:9092", "sasl.password": "hush"}),
     r"write bootstrap_servers='h:9092', sasl_password=…"),
    (lambda: Producer({"bootstrap.servers": "h:9092", "queue.buffering.max.ms": 5}),
     r"write bootstrap_servers='h:9092', linger_ms=5"),
    (lambda: Admin({"bootstrap.servers": "h:9092"}), r"write bootstrap_servers='h:9092'"),
    (lambda: Consumer("flights", bootstrap_servers="h:9092"),
     r"Consumer: bootstrap_servers is given twice, by position and by name"),
    (lambda: Consumer("flights", group_id="g"), r"bootstrap\.servers: 'flights' is no HOST:PORT"),
    (lambda: Consumer("", group_id="g"), r"bootstrap\.servers names no broker; write HOST:PORT"),
    (lambda: Consumer("h:1", max_poll_records=0), r"max_poll_records: it must be at least 1, or -1 for no bound"),
    (lambda: Admin([]), r"bootstrap\.servers names no broker; write HOST:PORT"),
    (lambda: Consumer("h:1", "h:2"), r"Consumer takes 1 argument by position \(bootstrap_servers\), not 2"),
    (lambda: Consumer(5), r"bootstrap_servers must be str or a list of str, or None, not 5"),
    (lambda: Consumer(["h:1", 5]), r"bootstrap_servers\[1\] must be str, not 5"),
    (lambda: Consumer(group_id=5), r"group_id must be a string, not 5; write group_id='5'"),
    (lambda: Consumer(group_id=b"g"), r"group_id must be a string, not b'g'; write group_id='g'"),
    (lambda: Consumer(groupId="g"), r"unknown setting groupId; did you mean group_id\?"),
    (lambda: Consumer(grop_id="g"), r"unknown setting grop_id; did you mean group_id\?"),
    (lambda: Consumer(**{"grop.id": "g"}), r"unknown setting grop\.id; did you mean group\.id\?"),
    (lambda: Consumer(autoOffsetReset="earliest"), r"did you mean auto_offset_reset\?"),
    (lambda: Consumer(sasl_plain_password="x"), r"unknown setting sasl_plain_password; did you mean sasl_password\?"),
    (lambda: Consumer(ssl_cafile="x"), r"did you mean ssl_ca_location\?"),
    (lambda: Consumer(value_serializer=bytes), r"unknown setting value_serializer; did you mean value_deserializer\?"),
    (lambda: Consumer(value_deserializer="json"), r"value_deserializer must be a function, not 'json'"),
    (lambda: Producer(value_deserializer=bytes),
     r"unknown setting value_deserializer; did you mean value_serializer\?"),
    (lambda: Consumer(session_timeout_ms=True), r"session_timeout_ms must be a whole number, not True"),
    (lambda: Consumer(session_timeout_ms="30s"),
     r"session_timeout_ms must be a whole number, not '30s'; write 30000, in milliseconds"),
    (lambda: Consumer(session_timeout_ms="soon"), r"must be a whole number, not 'soon' \[INVALID_REQUEST\]$"),
    (lambda: Consumer(api_version=(2, 0)), r"unknown setting api_version \[INVALID_REQUEST\]$"),
    (lambda: Consumer(session_timeout_ms=0), r"session_timeout_ms must be at least 1 ms, not 0"),
    (lambda: Consumer(columns="ky"), r"columns must be one of key, value"),
    (lambda: Consumer(enable_auto_commit=1), r"enable_auto_commit must be true or false, not 1"),
    (lambda: Producer(acks=2), r"acks must be one of all, -1, 0, 1, not 2"),
    (lambda: Producer(compression_type="gz"), r"compression_type must be one of none, gzip"),
    (lambda: Broker({"num.partitions": 6}),
     r"Broker: data_dir must be str or Path, or None, not \{'num.partitions': 6\}; did you mean config=\?"),
    (lambda: Broker(config="num.partitions=6"),
     r"Broker: config must be a dict of str to .*, or None, not 'num.partitions=6'"),
    (lambda: Broker(data_dir=""), r"Broker: data_dir must be a name with at least one character, not ''"),
    (lambda: Broker(config={"num.partitions": object()}), r"config\['num.partitions'\] must be str, .*, not <object"),
    (lambda: Broker(config={"num.partitons": 6}), r"unknown setting num\.partitons; did you mean num\.partitions\?"),
    (lambda: Broker(listen=9092), r"listen must be str, not 9092; write '9092'"),
    (lambda: Region("r", NOWHERE, checkpoint_every="5"),
     r"checkpoint_every='5' would be 5 ms; write '5s' for seconds, or '5ms'"),
    (lambda: Region("r", NOWHERE, checkpoint_every="often"), r"checkpoint_every must be a time like 15m, 30s"),
    (lambda: Broker(log_level="LOUD"), r"log_level must be one of CRITICAL, .*, not 'LOUD'"),
    (lambda: Broker(num_partitions=6), r"Broker takes no num_partitions; it takes data_dir, config, listen"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "text"), [pytest.param(*row, id=row[1][:60]) for row in SETTINGS])
def test_what_is_no_setting(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(InvalidInputError, match=text) as caught:
        call()
    assert caught.value.code is ErrorCode.INVALID_REQUEST
    assert "hush" not in str(caught.value)


def test_every_collection_of_the_interface_refuses_a_string() -> None:
    """By the signatures: whatever takes several things says so to a string, an int and an object of another kind."""
    import kohort

    tried = 0
    for name in kohort.__all__:
        kind = getattr(kohort, name)
        if not inspect.isclass(kind) or not hasattr(kind, "__dict__"):
            continue
        for at, method in vars(kind).items():
            if at.startswith("_") or not hasattr(method, "arguments"):
                continue
            for parameter, said in method.arguments.expected_texts().items():
                if said.startswith(("a list of", "a dict of")):
                    for wrong in ("abc", 5, object()):
                        with pytest.raises(
                            InvalidInputError, match=f"{at}: {parameter} must be {said.split(',')[0][:9]}"
                        ):
                            method.arguments.check_argument(parameter, wrong)
                        tried += 1
    assert tried > 100


def test_what_is_taken(clients: dict[str, Any]) -> None:
    consumer: Consumer = clients["consumer"]
    consumer.assign(TopicPartition("t", number) for number in range(2))
    assert consumer.assignment() == {TopicPartition("t", 0), TopicPartition("t", 1)}
    consumer.seek(TP, np.int64(7))
    assert consumer.position(TP) == 7 and type(consumer.position(TP)) is int
    consumer.pause(*consumer.assignment())
    assert isinstance(consumer.poll(timeout_ms=1.0), Records)
    assert isinstance(consumer.poll(0.123456), Records)
    assert isinstance(consumer.poll(np.float64(3.7)), Records)
    assert isinstance(consumer.poll(1000 / 20), Records), "computed"
    assert consumer.subscription() == set()
    consumer.assign({TP: 5})
    assert consumer.assignment() == {TP}
    with Consumer(**{"bootstrap.servers": NOWHERE, "group.id": "g", "session.timeout.ms": "6000"}) as other:  # a file's
        assert other.config.session_timeout_ms == 6000
    with Producer(NOWHERE, acks=1) as producer:
        assert producer.config.acks == "1" and not producer.config.enable_idempotence


def test_a_secret_is_not_repeated(clients: dict[str, Any]) -> None:
    from kohort import ScramCredential

    with pytest.raises(InvalidInputError) as caught:
        clients["admin"].alter_user_scram_credentials([ScramCredential("alice", b"hush")])  # type: ignore[arg-type]
    assert "upsertions[0].password must be str, not bytes" in str(caught.value)
    assert "hush" not in str(caught.value)


def test_signatures_stay_what_they_were() -> None:
    @checks_arguments
    class Some:
        def call(self, names: list[str], *, timeout_ms: float | None = None) -> Mapping[str, int]:
            """Return each name with 0."""
            return dict.fromkeys(names, 0)

        async def later(self, name: str) -> str:
            return name

    assert (
        str(inspect.signature(Some.call))
        == "(self, names: 'list[str]', *, timeout_ms: 'float | None' = None) -> 'Mapping[str, int]'"
    )
    assert Some.call.__doc__ == "Return each name with 0."
    assert inspect.iscoroutinefunction(Some.later)
    assert Some().call(["a"]) == {"a": 0}
    assert asyncio.run(Some().later("x")) == "x"
    with pytest.raises(InvalidInputError, match=r"Some\.later: name must be str, not 5"):
        asyncio.run(Some().later(5))  # type: ignore[arg-type]


def test_subscription_without_topics_or_with_both_kinds_is_refused(clients: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError, match="subscribe got no topic: name some, or give a pattern"):
        clients["consumer"].subscribe([])
    with pytest.raises(InvalidInputError, match="topics and a pattern: give one of them"):
        clients["consumer"].subscribe(["a"], pattern="b")
    with pytest.raises(InvalidInputError, match=r"the pattern is empty: name topics, or give '\.\*' for all topics"):
        clients["consumer"].subscribe(pattern="")


def test_partition_that_is_not_assigned_is_refused_with_those_that_are(clients: dict[str, Any]) -> None:
    consumer = clients["consumer"]
    with pytest.raises(
        KafkaError, match="t-0 is not assigned to this consumer: assign it, or subscribe and poll first"
    ):
        consumer.seek(TP, 5)
    consumer.assign([TopicPartition("u", number) for number in range(5)])
    with pytest.raises(KafkaError, match="t-0 is not assigned to this consumer, which has u-0, u-1, u-2 and others"):
        consumer.seek(TP, 5)


def test_login_that_the_protocol_does_not_use_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    settings._warn_of_unused_login.cache_clear()
    for _ in range(2):
        Consumer(NOWHERE, sasl_username="shop", sasl_password="hush").close()
    (text,) = caplog.messages
    assert "because security.protocol is PLAINTEXT: set it to SASL_SSL" in text and "hush" not in text
