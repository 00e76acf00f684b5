"""Quotas: rates as Kafka computes them, who shares one, and what a client that exceeds one sees."""

from __future__ import annotations

import math
import socket
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from kohort import Admin, Broker, NewTopic
from kohort.broker.config.quotas import CLIENT, IP, USER, StoredQuotas, quota_entity_of
from kohort.broker.server.throttling import CONNECTIONS, CONSUMER, PRODUCER, MutationBucket, Throttling, WindowedRate
from kohort.errors import ErrorCode
from kohort.wire.cluster_admin import AlterClientQuotasRequest, DescribeClientQuotasRequest
from kohort.wire.data import FetchRequest
from kohort.wire.discovery import (
    ApiVersionsRequest,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    MetadataRequest,
)
from tests.broker.literal_consumer import CLUSTER_METADATA, WAIT_S, ask, text
from tests.broker.raw import RawClient, batch_of, create_topic, produce, produce_request

ANYONE = "ANONYMOUS"


def set_quota(client: RawClient, entity: dict[str, str | None], **quotas: float | None) -> None:
    make = AlterClientQuotasRequest.EntryData
    ops = [
        make.OpData(key=key, value=0.0 if value is None else value, remove=value is None)
        for key, value in quotas.items()
    ]
    names = [make.EntityData(entity_type=kind.replace("_", "-"), entity_name=name) for kind, name in entity.items()]
    answer = client.ask(AlterClientQuotasRequest(entries=[make(entity=names, ops=ops)]))
    assert answer.entries[0].error_code == 0, answer


def test_rate_is_the_average_over_eleven_windows() -> None:
    """The numbers are those of Kafka's `Rate` and `QuotaUtils.throttleTime` for the same calls."""
    rate = WindowedRate(11, 1000)
    rate.record(1000, 0)
    assert rate.wait_ms_below_limit(100, 0) == 0.0, "1000 over the ten full windows that are reckoned with"
    rate.record(500, 0)
    assert rate.wait_ms_below_limit(100, 0) == pytest.approx(5_000), "(150 - 100) / 100 * 10 s"
    assert rate.wait_ms_below_limit(100, 2_500) == pytest.approx((1500 / 10.5 - 100) / 100 * 10_500)
    assert rate.wait_ms_below_limit(100, 10_999) == pytest.approx((1500 / 10.999 - 100) / 100 * 10_999)
    assert rate.wait_ms_below_limit(100, 11_000) == 0.0, "the window is forgotten"
    rate.record(10, 11_000)
    rate.record(-10, 11_000)
    assert rate.wait_ms_below_limit(0.001, 11_000) == 0.0


ENTITIES: list[tuple[list[tuple[str, str | None]], tuple[str | None, str | None]]] = [
    ([(CLIENT, None)], (None, "app")),
    ([(CLIENT, "app")], (None, "app")),
    ([(USER, None)], ("alice", None)),
    ([(USER, None), (CLIENT, None)], ("alice", "app")),
    ([(USER, None), (CLIENT, "app")], ("alice", "app")),
    ([(USER, "alice")], ("alice", None)),
    ([(USER, "alice"), (CLIENT, None)], ("alice", "app")),
    ([(USER, "alice"), (CLIENT, "app")], ("alice", "app")),
]
"""From the least specific to the most specific, each with what shares its rate."""


def test_the_most_specific_quota_counts_alone(tmp_path: Path) -> None:
    quotas = StoredQuotas(tmp_path)
    throttling = Throttling(quotas, 11, 1000)
    assert not throttling.active
    for number, (entity, shared) in enumerate(ENTITIES, 1):
        quotas.set_quotas(quota_entity_of(entity), {PRODUCER: float(number)})
        assert throttling.active
        assert throttling._limit(PRODUCER, "alice", "app") == ((PRODUCER, *shared), float(number)), entity
        assert throttling._limit(CONSUMER, "alice", "app") is None
    assert throttling._limit(PRODUCER, "bob", "other") == ((PRODUCER, "bob", "other"), 4.0)
    quotas.set_quotas(quota_entity_of(ENTITIES[-1][0]), {PRODUCER: None})
    assert throttling._limit(PRODUCER, "alice", "app") == ((PRODUCER, "alice", "app"), 7.0)
    again = Throttling(StoredQuotas(tmp_path), 11, 1000)
    assert again.active, "quotas count after a restart"
    assert again._limit(PRODUCER, "alice", "x") == ((PRODUCER, "alice", "x"), 7.0)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 2.0**64], ids=str)
@pytest.mark.parametrize("kind", ["user", "ip"])
def test_a_quota_that_is_no_number_or_too_large_is_refused(
    client: RawClient, name: str, kind: str, value: float
) -> None:
    make = AlterClientQuotasRequest.EntryData
    entity = make.EntityData(entity_type=kind, entity_name=name if kind == USER else "127.0.0.9")
    for key in (PRODUCER, "request_percentage") if kind == USER else (CONNECTIONS,):
        if math.isfinite(value) and key == "request_percentage":
            continue  # a large percentage bounds nothing, as in Kafka
        ops = [make.OpData(key=key, value=value)]
        answer = client.ask(AlterClientQuotasRequest(entries=[make(entity=[entity], ops=ops)]))
        assert answer.entries[0].error_code == ErrorCode.INVALID_REQUEST, (key, answer)


def test_answers_list_the_parts_of_entities_and_the_quotas_in_kafkas_order(client: RawClient, name: str) -> None:
    """@platformatic/kafka's tests compare the answers of Apache Kafka 4.4 as they come."""
    make = AlterClientQuotasRequest.EntryData
    names = [("user", name), ("client-id", "c")]
    entity = [make.EntityData(entity_type=kind, entity_name=value) for kind, value in names]
    keys = ("controller_mutation_rate", PRODUCER, "consumer_byte_rate", "request_percentage")
    ops = [make.OpData(key=key, value=1000.0) for key in keys]
    altered = client.ask(AlterClientQuotasRequest(entries=[make(entity=entity, ops=ops)])).entries[0]
    asked = DescribeClientQuotasRequest.ComponentData(entity_type="user", match_type=0, match=name)
    described = client.ask(DescribeClientQuotasRequest(components=[asked], strict=False)).entries[0]
    for entry in (altered, described):
        assert [(part.entity_type, part.entity_name) for part in entry.entity] == names[::-1]
    assert [value.key for value in described.values] == [
        "consumer_byte_rate", "request_percentage", PRODUCER, "controller_mutation_rate"
    ]  # fmt: skip


def test_a_stored_quota_without_a_value_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Earlier versions stored an infinite quota so; every description of quotas then closed its connection."""
    (tmp_path / "quotas.json").write_text(
        '{"[[\\"user\\",\\"u\\"]]": {"producer_byte_rate": 5.0, "request_percentage": null},'
        ' "[[\\"user\\",\\"v\\"]]": {"request_percentage": null}}'
    )
    assert StoredQuotas(tmp_path).all_quotas() == {((USER, "u"),): {PRODUCER: 5.0}}
    assert caplog.text.count("has no value and is ignored") == 2


def test_connections_of_an_address_have_a_rate(tmp_path: Path) -> None:
    quotas, now = StoredQuotas(tmp_path), 0.0
    throttling = Throttling(quotas, 11, 1000, lambda: now)
    quotas.set_quotas(quota_entity_of([(IP, None)]), {CONNECTIONS: 1.0})
    quotas.set_quotas(quota_entity_of([(IP, "192.0.2.1")]), {CONNECTIONS: 2.0})
    assert [throttling.connection_throttle_ms("192.0.2.1") > 0 for _ in range(22)] == [False] * 20 + [True] * 2
    assert [throttling.connection_throttle_ms("192.0.2.2") > 0 for _ in range(12)] == [False] * 10 + [True] * 2
    assert throttling.connection_throttle_ms("192.0.2.2") == pytest.approx(1000)
    now += 11
    assert throttling.connection_throttle_ms("192.0.2.2") == 0.0


def silent_for(client: RawClient, asked: Any) -> float:
    """How long a request waits for its answer."""
    began = time.monotonic()
    client.ask(asked)
    return time.monotonic() - began


def test_a_producer_over_its_quota_is_throttled_and_not_read(client: RawClient, topic: str, name: str) -> None:
    set_quota(client, {"client-id": name}, producer_byte_rate=20_000)
    with RawClient(client.address, client_id=name) as limited:
        for _ in range(2):
            limited.send(produce_request(topic, 0, batch_of(bytes(99_000))), 9)
            assert limited.receive().throttle_time_ms == 0, "10 s of the quota at once are below the average"
        limited.send(produce_request(topic, 0, batch_of(bytes(11_000))), 9)
        answer = limited.receive()
        throttle_ms = answer.throttle_time_ms
        assert 300 < throttle_ms < 700
        assert answer.responses[0].partition_responses[0].error_code == 0, "the records are written"
        waited = silent_for(limited, MetadataRequest(topics=[]))
        assert waited > throttle_ms / 1000 - 0.2
        with RawClient(client.address, client_id="another") as other:
            other.send(produce_request(topic, 0, batch_of(bytes(300_000))), 9)
            assert other.receive().throttle_time_ms == 0
    set_quota(client, {"client-id": name}, producer_byte_rate=None)


def test_a_producer_without_acks_is_not_read_either(client: RawClient, topic: str, name: str) -> None:
    set_quota(client, {"client-id": name}, producer_byte_rate=20_000)
    with RawClient(client.address, client_id=name) as limited:
        limited.send(produce_request(topic, 0, batch_of(bytes(220_000)), acks=0), 9)
        limited._owed.clear()
        assert silent_for(limited, MetadataRequest(topics=[])) > 0.5
    set_quota(client, {"client-id": name}, producer_byte_rate=None)


def fetch_request(topic: str, offset: int = 0, session: tuple[int, int] = (0, 0)) -> FetchRequest:
    part = FetchRequest.FetchTopic.FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 30)
    topics = [FetchRequest.FetchTopic(topic=topic, partitions=[part])]
    return FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1 << 30, session_id=session[0], session_epoch=session[1], topics=topics
    )


def test_a_fetch_over_the_quota_is_empty_and_served_later(client: RawClient, topic: str, name: str) -> None:
    for _ in range(12):
        assert produce(client, topic, 0, batch_of(bytes(20_000))).error_code == 0
    set_quota(client, {"user": ANYONE, "client-id": name}, consumer_byte_rate=10_000)
    with RawClient(client.address, client_id=name) as limited:
        limited.send(fetch_request(topic), 12)
        first = limited.receive()
        records = first.responses[0].partitions[0].records
        assert 60_000 < len(records) <= 100_000, "no fetch is larger than ten windows allow"
        assert first.throttle_time_ms == 0
        assert first.session_id != 0
        limited.send(fetch_request(topic, 4, (first.session_id, 1)), 12)
        refused = limited.receive()
        assert not refused.responses
        assert refused.throttle_time_ms > 1_000
        assert refused.session_id == first.session_id
        set_quota(client, {"user": ANYONE, "client-id": name}, consumer_byte_rate=100_000_000)
        limited.send(fetch_request(topic, 4, (first.session_id, 2)), 12)
        later = limited.receive()
        assert len(later.responses[0].partitions[0].records) > 100_000, "the session goes on, and nothing is missing"
        set_quota(client, {"user": ANYONE, "client-id": name}, consumer_byte_rate=1_000)
        limited.send(fetch_request(topic), 12)
        anew = limited.receive()
        assert (anew.session_id, anew.responses) == (0, []), "no session begins with a refusal"
    set_quota(client, {"user": ANYONE, "client-id": name}, consumer_byte_rate=None)


def test_a_request_percentage_bounds_the_time_of_the_loop(client: RawClient, name: str) -> None:
    create_topic(client, name, 4_000)
    set_quota(client, {"client-id": name}, request_percentage=0.01)
    with RawClient(client.address, client_id=name) as limited:
        throttled = 0
        for _ in range(30):
            throttled = limited.ask(MetadataRequest(topics=None), 9).throttle_time_ms
            if throttled:
                break
        assert 0 < throttled <= 1_000, "never longer than a window"
        assert silent_for(limited, ApiVersionsRequest(client_software_name="a", client_software_version="1")) > 0
    set_quota(client, {"client-id": name}, request_percentage=None)


def test_connections_over_the_rate_are_closed(tmp_path: Path) -> None:
    config = {"quota.window.num": 2}
    with Broker(tmp_path / "data", config) as broker, RawClient(broker.bootstrap_servers) as client:
        set_quota(client, {"ip": "127.0.0.1"}, connection_creation_rate=3)
        ends = [RawClient(broker.bootstrap_servers) for _ in range(6)]
        closed = [end.closed() for end in ends[3:]]
        assert closed == [True] * 3
        for end in ends[:3]:
            assert end.ask(MetadataRequest(topics=[])).brokers
        set_quota(client, {"ip": "127.0.0.1"}, connection_creation_rate=None)
        with RawClient(broker.bootstrap_servers) as free:
            assert free.ask(MetadataRequest(topics=[])).brokers
        for end in ends:
            end.close()


def test_librdkafka_slows_down_and_says_so(client: RawClient, topic: str, name: str) -> None:
    confluent_kafka = pytest.importorskip("confluent_kafka")
    throttled: list[float] = []
    set_quota(client, {"client-id": name}, producer_byte_rate=100_000)
    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": client.address,
            "client.id": name,
            "linger.ms": 0,
            "throttle_cb": lambda event: throttled.append(event.throttle_time),
        }
    )
    failed: list[object] = []
    for _ in range(14):
        producer.produce(topic, bytes(100_000), on_delivery=lambda error, _: error and failed.append(error))
        producer.poll(0)
    assert producer.flush(60) == 0
    until_s = time.monotonic() + 30
    while not any(throttled) and time.monotonic() < until_s:
        producer.poll(0.1)
    assert not failed
    assert max(throttled) > 0
    set_quota(client, {"client-id": name}, producer_byte_rate=None)


# -- changes of topics


def test_bucket_of_changes_has_kafkas_numbers() -> None:
    """The numbers are those of Kafka's `TokenBucket`, as its `StrictControllerMutationQuotaTest` has them."""
    bucket = MutationBucket(burst_s=10)
    assert bucket.refill_wait_ms(10, 0) == 0
    bucket.take_tokens(90, 10, 0)
    bucket.take_tokens(90, 10, 0)
    assert bucket.refill_wait_ms(10, 0) == 8_000, "-80 of 100, and 10 come back each second"
    assert bucket.refill_wait_ms(10, 5_000) == 3_000
    assert bucket.refill_wait_ms(10, 8_000) == 0
    bucket.take_tokens(100, 10, 60_000)
    assert bucket.refill_wait_ms(10, 60_000) == 0, "it holds no more than its burst"
    bucket.take_tokens(1, 10, 60_000)
    assert bucket.refill_wait_ms(10, 60_000) == 100


def creation(*names: str, partitions: int = 1, validate_only: bool = False) -> CreateTopicsRequest:
    make = CreateTopicsRequest.CreatableTopic
    topics = [make(name=name, num_partitions=partitions, replication_factor=1) for name in names]
    return CreateTopicsRequest(topics=topics, timeout_ms=30_000, validate_only=validate_only)


def growth(name: str, count: int) -> CreatePartitionsRequest:
    make = CreatePartitionsRequest.CreatePartitionsTopic
    return CreatePartitionsRequest(topics=[make(name=name, count=count, assignments=None)], timeout_ms=30_000)


def deletion(*names: str) -> DeleteTopicsRequest:
    topics = [DeleteTopicsRequest.DeleteTopicState(name=name) for name in names]
    return DeleteTopicsRequest(topics=topics, topic_names=[*names], timeout_ms=30_000)


EXCEEDED = ErrorCode.THROTTLING_QUOTA_EXCEEDED


def test_changes_over_the_quota_are_refused_to_clients_that_know_the_error(client: RawClient, name: str) -> None:
    set_quota(client, {"client-id": name}, controller_mutation_rate=0.1)
    with RawClient(client.address, client_id=name) as limited:
        made = limited.ask(creation(f"{name}-1", f"{name}-2", f"{name}-3", partitions=2), 6)
        assert [topic.error_code for topic in made.topics] == [0, EXCEEDED, EXCEEDED], "1.1 is the burst"
        assert made.topics[1].error_message == "The throttling quota has been exceeded."
        assert 5_000 < made.throttle_time_ms <= 9_000
    with RawClient(client.address, client_id=name) as limited:
        grown = limited.ask(growth(f"{name}-1", 3), 3)
        assert grown.results[0].error_code == EXCEEDED and grown.throttle_time_ms > 0
    with RawClient(client.address, client_id=name) as limited:
        gone = limited.ask(deletion(f"{name}-1"), 5)
        assert gone.responses[0].error_code == EXCEEDED and gone.throttle_time_ms > 0
    with RawClient(client.address, client_id="another") as other:
        assert [topic.error_code for topic in other.ask(creation(f"{name}-4"), 6).topics] == [0]
        assert other.ask(deletion(f"{name}-1"), 5).responses[0].error_code == 0
    set_quota(client, {"client-id": name}, controller_mutation_rate=None)


def test_changes_of_older_clients_are_made_and_delayed(client: RawClient, name: str) -> None:
    set_quota(client, {"client-id": name}, controller_mutation_rate=100)
    with RawClient(client.address, client_id=name) as limited:
        made = limited.ask(creation(name, partitions=1_000), 5)
        assert (made.topics[0].error_code, made.throttle_time_ms) == (0, 0)
        grown = limited.ask(growth(name, 1_200), 2)
        assert grown.results[0].error_code == 0
        assert 0 < grown.throttle_time_ms <= 1_000
        assert limited.ask(MetadataRequest(topics=[])).brokers, "after the delay"
        gone = limited.ask(deletion(name), 4)
        assert gone.responses[0].error_code == 0
        assert gone.throttle_time_ms > 5_000
    set_quota(client, {"client-id": name}, controller_mutation_rate=None)


def test_changes_that_are_refused_anyway_use_up_no_quota(client: RawClient, topic: str, name: str) -> None:
    set_quota(client, {"client-id": name}, controller_mutation_rate=0.1)
    with RawClient(client.address, client_id=name) as limited:
        for _ in range(3):
            assert limited.ask(creation(topic, partitions=5), 6).topics[0].error_code == ErrorCode.TOPIC_ALREADY_EXISTS
            assert limited.ask(growth(topic, 1), 3).results[0].error_code == ErrorCode.INVALID_PARTITIONS
            gone = limited.ask(deletion(f"{name}-none"), 5).responses[0]
            assert gone.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        assert limited.ask(creation(f"{name}-new", partitions=5), 6).topics[0].error_code == 0
    set_quota(client, {"client-id": name}, controller_mutation_rate=None)


def test_topics_that_use_would_make_wait_for_the_quota(client: RawClient, name: str) -> None:
    """Otherwise any client that names topics in Metadata gets past it."""
    set_quota(client, {"client-id": name}, controller_mutation_rate=0.1)
    with RawClient(client.address, client_id=name) as limited:
        assert limited.ask(creation(name, partitions=5), 6).topics[0].error_code == 0
        asked = [MetadataRequest.MetadataRequestTopic(name=f"{name}-used")]
        reported = limited.ask(MetadataRequest(topics=asked, allow_auto_topic_creation=True), 9)
        assert reported.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    listed = {topic.name for topic in client.ask(MetadataRequest(topics=None), 9).topics}
    assert name in listed and f"{name}-used" not in listed
    set_quota(client, {"client-id": name}, controller_mutation_rate=None)


def test_admin_waits_and_makes_the_topic(client: RawClient, name: str, caplog: pytest.LogCaptureFixture) -> None:
    """The broker reads nothing for 4 s, which is no reason to end the connection."""
    set_quota(client, {"client-id": name}, controller_mutation_rate=2)
    with caplog.at_level("INFO", "kohort.client"), Admin(client.address, client_id=name) as admin:
        admin.create_topics([NewTopic(f"{name}-{number}", 8) for number in range(4)]).all()
        admin.create_topics([NewTopic(f"{name}-last", 1)]).all()
    assert "connection" not in caplog.text
    set_quota(client, {"client-id": name}, controller_mutation_rate=None)


# -- push frames


def test_push_frames_count_toward_the_request_percentage(client: RawClient, name: str) -> None:
    set_quota(client, {"client-id": None}, request_percentage=0.001)
    host, _, port = client.address.rpartition(":")
    with socket.create_connection((host, int(port)), WAIT_S) as sock:
        frame = struct.pack(">h", CLUSTER_METADATA) + text(name)

        def silent_s() -> float:
            began = time.monotonic()
            ask(sock, frame)
            return time.monotonic() - began

        assert any(silent_s() > 0.3 for _ in range(30))
    set_quota(client, {"client-id": None}, request_percentage=None)
