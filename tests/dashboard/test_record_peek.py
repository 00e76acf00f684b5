"""A look at records: which ones, how they are shown, and where the look ends."""

from __future__ import annotations

import base64
import tracemalloc
from typing import Any

import msgspec
import pytest

from kohort import Admin, Broker, Producer
from kohort.client.admin.values import NewTopic
from kohort.dashboard import record_peek
from kohort.dashboard.record_peek import ANSWER_BYTES_MAX, FIELD_BYTES_MAX, INDENTED_MAX, PeekRequest, field_view, peek
from kohort.errors import InvalidInputError, KafkaError, NotFoundError


@pytest.fixture(scope="module")
def topic(our_broker: Broker) -> str:
    """Two partitions with 30 records each."""
    with Admin(our_broker.bootstrap_servers) as admin, Producer(our_broker.bootstrap_servers) as producer:
        admin.create_topics([NewTopic("looked-at", 2, 1)]).all()
        for number in range(60):
            header = [("trace", b"T%d" % number)]
            producer.send(
                "looked-at", b"v%d" % number, key=b"k%d" % number, partition=number % 2, headers=header,
                timestamp_ms=1000 + number,
            )  # fmt: skip
        producer.flush()
    return "looked-at"


def look(broker: Broker, topic: str, **asked: Any) -> dict[str, Any]:
    return peek(
        broker.bootstrap_servers, {"group.id": "somebody", "auto.offset.reset": "latest"}, PeekRequest(topic, **asked)
    )


def values(found: dict[str, Any]) -> list[str]:
    return [record["value"]["text"] for record in found["records"]]


def test_newest_records_of_all_partitions_come_first(our_broker: Broker, topic: str) -> None:
    found = look(our_broker, topic, limit=4)
    assert values(found) == ["v59", "v58", "v57", "v56"]
    assert [record["partition"] for record in found["records"]] == [1, 0, 1, 0]
    assert (found["scanned"], found["stopped"]) == (8, None)


def test_records_from_an_offset_come_in_order(our_broker: Broker, topic: str) -> None:
    assert values(look(our_broker, topic, partition=1, offset=27, limit=2)) == ["v55", "v57"]
    assert values(look(our_broker, topic, partition=1, offset=28)) == ["v57", "v59"]
    assert look(our_broker, topic, partition=1, offset=1000) == {"records": [], "scanned": 0, "stopped": None}


@pytest.mark.parametrize(("text", "found"), [("v17", ["v17"]), ("k17", ["v17"]), ("T17", ["v17"]), ("nothing", [])])
def test_text_is_looked_for_in_key_value_and_headers(
    our_broker: Broker, topic: str, text: str, found: list[str]
) -> None:
    assert values(look(our_broker, topic, contains=text)) == found


def test_look_ends_after_a_number_of_records(our_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_peek, "RECORDS_SCANNED_MAX", 10)
    found = look(our_broker, topic, partition=0, offset=0, contains="v58")
    assert found == {"records": [], "scanned": 10, "stopped": "10 records were read"}
    assert values(look(our_broker, topic, contains="v5", limit=3)) == ["v59", "v58", "v57"]


def test_look_ends_after_a_number_of_bytes(our_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_peek, "BYTES_SCANNED_MAX", 20)
    found = look(our_broker, topic, partition=0, offset=0, contains="v58")
    assert found["scanned"] < 5 and found["stopped"]


def test_look_ends_after_a_time(our_broker: Broker, topic: str) -> None:
    clock = iter(range(0, 1_000_000, 1_000))
    request = PeekRequest(topic, contains="nothing")
    found = peek(our_broker.bootstrap_servers, {}, request, lambda: next(clock))
    assert found["stopped"] == "5 s have passed"


def test_topic_or_partition_that_is_not_there_is_not_found(our_broker: Broker, topic: str) -> None:
    with pytest.raises(NotFoundError, match="no topic"):
        look(our_broker, f"{topic}-not")
    with pytest.raises(NotFoundError, match="no partition 2"):
        look(our_broker, topic, partition=2)


@pytest.mark.parametrize(
    "asked", [{"limit": 0}, {"limit": 201}, {"offset": 3}, {"partition": -1}, {"partition": 0, "offset": -1}]
)
def test_request_out_of_range_is_refused(asked: dict[str, int]) -> None:
    with pytest.raises(InvalidInputError):
        PeekRequest("t", **asked)  # type: ignore[arg-type]


def test_field_is_text_json_or_base64() -> None:
    assert field_view(None) is None
    assert field_view(b"") == {"size": 0, "cut": False, "text": "", "json": False}
    assert field_view("é<b>".encode()) == {"size": 5, "cut": False, "text": "é<b>", "json": False}
    assert field_view(b"\xff\x00") == {"size": 2, "cut": False, "base64": base64.b64encode(b"\xff\x00").decode()}
    long = field_view(b"x" * (FIELD_BYTES_MAX + 1))
    assert long is not None and long["cut"] and len(long["text"]) == FIELD_BYTES_MAX
    assert field_view(b"{not json") == {"size": 9, "cut": False, "text": "{not json", "json": False}
    deep = b"[" * 2000 + b"]" * 2000
    assert field_view(deep) is not None


def test_long_text_is_cut_by_its_bytes_between_characters() -> None:
    for character in ("é", "\N{GRINNING FACE}", "a\N{GRINNING FACE}"):
        data = (character * 3000).encode()
        view = field_view(data)
        assert view is not None and view["cut"] and data.startswith(view["text"].encode())
        assert FIELD_BYTES_MAX - 4 < len(view["text"].encode()) <= FIELD_BYTES_MAX
    late = field_view(b"x" * FIELD_BYTES_MAX + b"\xff")
    assert late is not None and "base64" in late, "bytes after the cut decide too"


def test_json_keeps_numbers_that_a_browser_would_round() -> None:
    view = field_view(b'{"id":12345678901234567890123,"at":1.10}')
    assert view == {
        "size": 40, "cut": False, "json": True, "text": '{\n  "id": 12345678901234567890123,\n  "at": 1.10\n}',
    }  # fmt: skip


NESTED = b"[" * 900 + b",".join([b"1"] * 1148) + b"]" * 900
"""4,095 bytes of JSON. With two spaces for each level they are 2 MB or more."""


def test_json_that_indents_would_blow_up_is_shown_as_it_is() -> None:
    assert len(NESTED) == 4095
    assert field_view(NESTED) == {"size": 4095, "cut": False, "text": NESTED.decode(), "json": False}
    strings = b"[" * 1000 + b'"]]]]]]]]]",' * 80 + b"1" + b"]" * 1000
    view = field_view(strings)
    assert view is not None and view["text"] == strings.decode(), "brackets in strings end no level"


def test_indented_json_is_within_its_limit() -> None:
    rows = b"[" + b",".join([b'{"a":[],"b":{"c":1}}'] * 120) + b"]"
    view = field_view(rows)
    assert view is not None and view["json"] and len(view["text"]) <= INDENTED_MAX


def test_records_of_nested_json_take_little_memory(our_broker: Broker) -> None:
    with Admin(our_broker.bootstrap_servers) as admin, Producer(our_broker.bootstrap_servers) as producer:
        admin.create_topics([NewTopic("nested", 1, 1)]).all()
        for _ in range(3):
            producer.send("nested", NESTED, key=NESTED, partition=0, headers=[("h", NESTED)] * 20)
        producer.flush()
    tracemalloc.start()
    try:
        found = look(our_broker, "nested")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found["records"]) == 3
    assert peak < 32 << 20


def test_only_records_that_are_shown_are_made_ready(
    our_broker: Broker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    whole = record_peek.record_view

    def counted(record: Any, decoding: Any) -> dict[str, Any]:
        made.append(record.offset)
        return whole(record, decoding)

    monkeypatch.setattr(record_peek, "record_view", counted)
    assert values(look(our_broker, topic, contains="v", limit=2)) == ["v59", "v58"]
    assert len(made) == 2


def test_answer_of_zero_bytes_is_bounded(our_broker: Broker) -> None:
    """Each zero byte is `\\u0000` in JSON, so that 7 MB of records would be 43 MB."""
    zeros = b"\0" * FIELD_BYTES_MAX
    with Admin(our_broker.bootstrap_servers) as admin, Producer(our_broker.bootstrap_servers) as producer:
        admin.create_topics([NewTopic("zeros", 1, 1)]).all()
        for _ in range(35):
            producer.send("zeros", zeros, partition=0, headers=[("h", zeros)] * 50)
        producer.flush()
    found = look(our_broker, "zeros")
    assert 0 < len(found["records"]) < 10 and found["stopped"] == "8 MiB are shown"
    assert len(msgspec.json.encode(found)) <= ANSWER_BYTES_MAX + 1000


def test_batch_beyond_the_bytes_of_a_look_is_not_decompressed(our_broker: Broker) -> None:
    """40 MiB of zero bytes are some kilobytes on the wire, so that only the decompressed size tells."""
    with (
        Admin(our_broker.bootstrap_servers) as admin,
        Producer(
            our_broker.bootstrap_servers, compression_type="gzip", max_request_size=64 << 20, buffer_memory=128 << 20
        ) as producer,
    ):
        admin.create_topics([NewTopic("bomb", 1, 1)]).all()
        producer.send("bomb", bytes(40 << 20), partition=0).result()
    tracemalloc.start()
    try:
        with pytest.raises(KafkaError, match="max.decompressed.batch.bytes"):
            peek(our_broker.bootstrap_servers, {"max.decompressed.batch.bytes": 1 << 30}, PeekRequest("bomb"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 80 << 20


def test_look_ends_within_a_poll_when_its_time_is_over(our_broker: Broker, topic: str) -> None:
    clock = iter([0.0, 1.0, 2.0, 6.0])
    found = peek(our_broker.bootstrap_servers, {}, PeekRequest(topic, contains="nothing"), lambda: next(clock))
    assert (found["scanned"], found["stopped"]) == (3, "5 s have passed")
