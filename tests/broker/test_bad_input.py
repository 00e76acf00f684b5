"""Requests no client should send, and options that cannot work: a clear error, no loss, other clients unaffected."""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest

from kohort import Broker
from kohort.broker.config.settings import broker_configs
from kohort.errors import ErrorCode, InvalidInputError, KafkaError
from kohort.wire.data import ListOffsetsRequest, ProduceRequest, ProduceResponse
from kohort.wire.discovery import (
    ApiVersionsRequest,
    ApiVersionsResponse,
    CreateTopicsRequest,
    MetadataRequest,
    MetadataResponse,
)
from kohort.wire.framing import decode_response, encode_request
from tests.broker.raw import RawClient, batch_of, create_topic, fetch, produce, produce_request, resident_kib

GARBAGE = [
    b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(200)),  # the start of a TLS handshake
    struct.pack(">i", 2**31 - 1),
    struct.pack(">i", -1),
    struct.pack(">i", 0),
    struct.pack(">ihhih", 10, 999, 0, 1, -1),
    struct.pack(">ihhih", 10, 3, 99, 1, -1),
    struct.pack(">ihhih", 10, 3, 5, 1, 500),
    struct.pack(">ihhih", 18, 3, 5, 1, -1) + b"\x7f" * 8,
    os.urandom(4096),
]


@pytest.mark.parametrize("garbage", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_closes_its_connection_and_no_other(
    broker: Broker, client: RawClient, topic: str, garbage: bytes
) -> None:
    with RawClient(broker.bootstrap_servers) as bad:
        bad.sock.sendall(garbage)
        bad.sock.shutdown(socket.SHUT_WR)
        assert bad.closed()
    assert produce(client, topic, 0, batch_of(b"a")).error_code == 0


def test_bytes_after_a_request_are_ignored(client: RawClient, topic: str) -> None:
    """So librdkafka 2.16 asks for all topics: a null array written in four bytes, so that three are left."""
    client.sock.sendall(struct.pack(">ihhih7s", 25, 3, 13, 1, 7, b"rdkafka") + b"\0" + b"\0\0\0\0\1\0\0")
    number, answer = decode_response(MetadataResponse, 13, client.frame())
    assert number == 1
    assert topic in [entry.name for entry in answer.topics]


@pytest.mark.parametrize("size", [5, 300])
def test_a_client_id_that_is_not_utf_8_is_served(client: RawClient, size: int) -> None:
    """Clients in C send what they are configured with; Apache Kafka serves them."""
    request = encode_request(ApiVersionsRequest(), 0, 1, "x" * size)
    client.sock.sendall(request.replace(b"xxxxx", b"M\xfcllr", 1))
    found, answer = decode_response(ApiVersionsResponse, 0, client.frame())
    assert (found, answer.error_code) == (1, ErrorCode.NONE)


def test_a_frame_that_only_claims_to_be_large_costs_nothing(broker: Broker) -> None:
    """100 MiB are allowed; what connections claim must not take a thousandth of it each."""
    with ExitStack() as waiting:
        before = resident_kib(broker)
        for _ in range(200):
            bad = waiting.enter_context(RawClient(broker.bootstrap_servers))
            bad.sock.sendall(struct.pack(">i", 100 << 20) + bytes(10))
        seen = waiting.enter_context(RawClient(broker.bootstrap_servers))
        assert seen.ask(MetadataRequest(topics=[])).brokers, "what came before it has been read"
        assert resident_kib(broker) - before < 20_000


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 9, 100, 1 << 18, (1 << 18) + 4, 1 << 20])
def test_frames_arrive_whole_however_they_are_cut(broker: Broker, client: RawClient, name: str, cut: int) -> None:
    """A piece that ends within a size, within a frame, with a frame; and what comes behind it."""
    create_topic(client, name, 1, max_message_bytes="20000000")
    values = [b"a", b"b" * 1_500_000, b"c" * 300_000, b"d"]
    frames = [
        encode_request(produce_request(name, 0, batch_of(value)), 9, number, "raw")
        for number, value in enumerate(values)
    ]
    stream = b"".join(frames)
    client.sock.sendall(stream[:cut])
    with RawClient(broker.bootstrap_servers) as other:
        assert other.ask(MetadataRequest(topics=[])).brokers, "the first piece has been read"
    client.sock.sendall(stream[cut:])
    for number in range(len(values)):
        found, answer = decode_response(ProduceResponse, 9, client.frame())
        assert (found, answer.responses[0].partition_responses[0].base_offset) == (number, number)


def test_a_frame_over_the_limit_is_named_in_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    config = {"socket.request.max.bytes": 10_000}
    with Broker(tmp_path / "data", config) as broker, RawClient(broker.bootstrap_servers) as bad:
        bad.sock.sendall(struct.pack(">i", 10_001))
        assert bad.closed()
        said = capfd.readouterr().err
    assert "10001 bytes" in said
    assert "socket.request.max.bytes is 10000" in said


def test_a_large_frame_below_the_limit_arrives_whole(client: RawClient, name: str) -> None:
    create_topic(client, name, 1, max_message_bytes="20000000")
    value = os.urandom(5_000_000)
    assert produce(client, name, 0, batch_of(value)).error_code == 0
    answer = fetch(client, name, 0, 0)
    assert value in bytes(answer.records)


def test_unknown_api_versions_version_is_answered_in_version_0(client: RawClient) -> None:
    client.sock.sendall(struct.pack(">ihhih", 11, 18, 77, 5, -1) + b"\0")
    number, answer = decode_response(ApiVersionsResponse, 0, client.frame())
    assert number == 5
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert 18 in {api_key.api_key for api_key in answer.api_keys}


def test_every_version_advertised_is_served(client: RawClient) -> None:
    """An empty request in every version: answered, whatever the answer."""
    from kohort.wire.framing import APIS

    advertised = client.ask(ApiVersionsRequest(client_software_name="a", client_software_version="1")).api_keys
    assert len(advertised) >= 35
    for api in advertised:
        request = APIS[api.api_key].request
        for version in range(max(api.min_version, request.MIN_VERSION), api.max_version + 1):
            message = request()
            if api.api_key == 0:
                message.acks = -1
            if api.api_key == 18:
                message.client_software_name = message.client_software_version = "a"
            if api.api_key == 10 and version < 4:
                message.key = "g"
            assert client.ask(message, version) is not None, (APIS[api.api_key].name, version)


def test_requests_are_answered_in_their_order(client: RawClient, topic: str) -> None:
    client.send(ListOffsetsRequest(replica_id=-1), 7)
    client.send(produce_request(topic, 0, batch_of(b"x")), 9)
    client.send(MetadataRequest(topics=[]), 9)
    for _ in range(3):
        client.receive()


def test_acks_0_is_not_answered_and_bad_acks_0_closes(broker: Broker, client: RawClient, topic: str) -> None:
    client.send(produce_request(topic, 0, batch_of(b"x"), acks=0), 9)
    client._owed.clear()
    assert fetch(client, topic, 0, 0).high_watermark == 1
    with RawClient(broker.bootstrap_servers) as other:
        other.send(produce_request("missing", 0, batch_of(b"x"), acks=0), 9)
        assert other.closed()


def test_a_topic_that_does_not_exist(client: RawClient) -> None:
    assert produce(client, "missing", 0, batch_of(b"x")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert fetch(client, "missing", 0, 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    asked = MetadataRequest(
        topics=[MetadataRequest.MetadataRequestTopic(name="missing")], allow_auto_topic_creation=False
    )
    assert client.ask(asked).topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "x" * 250, "é"])
def test_a_topic_name_that_can_not_be(client: RawClient, name: str) -> None:
    asked = CreateTopicsRequest(
        topics=[CreateTopicsRequest.CreatableTopic(name=name, num_partitions=1, replication_factor=1)]
    )
    assert client.ask(asked).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    asked = MetadataRequest(topics=[MetadataRequest.MetadataRequestTopic(name=name)])
    assert client.ask(asked).topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_damaged_batches_are_refused(client: RawClient, topic: str) -> None:
    good = batch_of(b"value" * 10)
    damaged = bytearray(good)
    damaged[-1] ^= 1
    assert produce(client, topic, 0, bytes(damaged)).error_code == ErrorCode.CORRUPT_MESSAGE
    for end in (1, 11, 12, 60, len(good) - 1):
        assert produce(client, topic, 0, good[:end]).error_code != 0
    assert produce(client, topic, 0, good + good[:20]).error_code != 0
    assert produce(client, topic, 0, None).error_code == ErrorCode.INVALID_RECORD
    assert produce(client, topic, 0, good).base_offset == 0


def test_a_batch_over_max_message_bytes(client: RawClient, name: str) -> None:
    create_topic(client, name, 1, max_message_bytes="1000")
    assert produce(client, name, 0, batch_of(b"x" * 2000)).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_internal_topics_are_not_for_producers(client: RawClient) -> None:
    assert produce(client, "__consumer_offsets", 0, batch_of(b"x")).error_code == ErrorCode.INVALID_TOPIC_EXCEPTION


def test_bad_acks(client: RawClient, topic: str) -> None:
    assert produce(client, topic, 0, batch_of(b"x"), acks=7).error_code == ErrorCode.INVALID_REQUIRED_ACKS


def test_more_connections_than_allowed_are_refused_and_the_others_served(tmp_path: Path) -> None:
    with Broker(tmp_path / "data", {"max.connections": 3}) as broker:
        admitted = [RawClient(broker.bootstrap_servers) for _ in range(3)]
        for connection in admitted:
            connection.ask(ProduceRequest(acks=-1), 9)
        with RawClient(broker.bootstrap_servers) as fourth:
            assert fourth.closed()
        for connection in admitted:
            connection.ask(ProduceRequest(acks=-1), 9)
            connection.close()


class TestOptions:
    """The broker is refused with one line."""

    @pytest.mark.parametrize(
        ("config", "words"),
        [
            ({"num.partition": 3}, ["num.partition", "num.partitions"]),
            ({"num.partitions": "many"}, ["num.partitions", "whole number", "many"]),
            ({"num.partitions": 0}, ["num.partitions", "from 1 to"]),
            ({"auto.create.topics.enable": "maybe"}, ["true or false"]),
            ({"log.retention.hourz": 1}, ["log.retention.hours"]),
        ],
    )
    def test_bad_property(self, config: dict[str, object], words: list[str]) -> None:
        with pytest.raises(InvalidInputError) as caught:
            broker_configs(config)
        for word in words:
            assert word in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_bad_property_of_an_embedded_broker(self) -> None:
        with pytest.raises(InvalidInputError, match=r"did you mean num\.partitions"):
            Broker(config={"num.partition": 3})

    def test_bad_address(self) -> None:
        with pytest.raises(InvalidInputError, match="HOST:PORT"):
            Broker(listen="nowhere")

    def test_port_in_use(self, broker: Broker) -> None:
        with pytest.raises(KafkaError, match="in use"):
            Broker(listen=broker.bootstrap_servers)

    def test_folder_in_use(self, broker: Broker, client: RawClient, name: str) -> None:
        with pytest.raises(KafkaError, match=r"in use|another broker"):
            Broker(broker.data_dir)
        create_topic(client, name)


def run_command(*arguments: str) -> subprocess.Popen[str]:
    listen, data, *properties = arguments
    options = [word for text in properties for word in ("--set", text)]
    command = [sys.executable, "-m", "kohort", "broker", "--listen", listen, "--data", data, *options]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_sigterm_ends_the_command_with_0(tmp_path: Path) -> None:
    with run_command("127.0.0.1:0", str(tmp_path / "data")) as process:
        assert process.stdout is not None
        word, address = process.stdout.readline().split()
        assert word == "ready"
        with RawClient(address) as client:
            create_topic(client, "t")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_the_command_says_why_not_and_ends_with_1_or_2(broker: Broker, tmp_path: Path) -> None:
    """A setting that does not exist is a wrong use of the command: 2."""
    for arguments, code in (
        ((broker.bootstrap_servers, str(tmp_path / "other")), 1),
        (("127.0.0.1:0", str(broker.data_dir)), 1),
        (("127.0.0.1:0", str(tmp_path / "other"), "num.partition=3"), 2),
    ):
        with run_command(*arguments) as process:
            _, said = process.communicate(timeout=20)
            assert process.returncode == code
            assert len([line for line in said.splitlines() if line.startswith("kohort: ")]) == 1
            assert "Traceback" not in said


def test_a_client_that_asks_and_does_not_read_takes_no_memory(broker: Broker, client: RawClient, name: str) -> None:
    """The answers to everything it asks would be gigabytes."""
    create_topic(client, name, 800)
    before = resident_kib(broker)
    with RawClient(broker.bootstrap_servers) as greedy:
        asked = MetadataRequest(topics=None)
        frame = encode_request(asked, 9, 1, "greedy")
        greedy.sock.setblocking(False)
        sent = 0
        while sent < 40_000:
            try:
                greedy.sock.send(frame * 100)
                sent += 100
            except BlockingIOError:
                break
        assert client.ask(MetadataRequest(topics=[])).brokers
        assert resident_kib(broker) - before < 200_000
        greedy.sock.setblocking(True)
        for _ in range(600):  # more than may wait for an answer: reading went on
            greedy.frame()


def test_a_client_that_asks_for_much_at_once_does_not_keep_others_waiting(tmp_path: Path) -> None:
    """Found by the fuzzer: hundreds of requests that take long, in one read."""
    with Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "wide", 5_000)
        with RawClient(broker.bootstrap_servers) as greedy:
            greedy.sock.sendall(encode_request(MetadataRequest(topics=None), 9, 1, "greedy") * 300)
            for _ in range(3):
                assert client.ask(MetadataRequest(topics=[])).brokers
            assert broker.metrics()["requests"]["Metadata"] < 40


def test_a_stream_of_requests_that_take_long_is_taken_in_its_order(tmp_path: Path) -> None:
    """Reads that are full, taken apart in several goes: what is left of one comes before the next."""
    with Broker(tmp_path / "data") as broker, RawClient(broker.bootstrap_servers) as client:
        create_topic(client, "wide", 3_000)
        asked = MetadataRequest(topics=None)
        frames = [encode_request(asked, 9, number, "x" * (2_000 + number)) for number in range(400)]
        sender = threading.Thread(target=client.sock.sendall, args=[b"".join(frames)])
        sender.start()
        numbers = [int.from_bytes(client.frame()[:4], "big") for _ in frames]
        sender.join()
        assert numbers == list(range(400))
