"""The registry's client: values by their schemas, and registries and values that mean harm."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest

from kohort import AsyncConsumer, Broker, Consumer, Producer, SchemaRegistry
from kohort.errors import (
    CorruptDataError,
    InvalidInputError,
    KafkaError,
    NotAuthorizedError,
    NotFoundError,
    RetriableError,
    TimedOutError,
)
from kohort.schema_registry import registry as client
from kohort.schema_registry.embedded import EmbeddedSchemaRegistry
from tests.schema_registry.raw_registry import http_answer, raw_registry
from tests.support.waiting import replace_time

PAYMENT = json.dumps(
    {
        "type": "record",
        "name": "Payment",
        "namespace": "shop",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "total", "type": ["null", "double"]},
            {"name": "tags", "type": {"type": "array", "items": "string"}, "default": []},
        ],
    }
)
FIRST: dict[str, Any] = {"id": 1, "total": None, "tags": ["new"]}


@pytest.fixture
def embedded() -> Iterator[EmbeddedSchemaRegistry]:
    with EmbeddedSchemaRegistry() as running:
        yield running


def test_value_goes_through_its_schema_and_back(embedded: EmbeddedSchemaRegistry) -> None:
    write = SchemaRegistry(embedded.url).serializer("payments-value", PAYMENT)
    data = write(FIRST)
    assert data[:5] == b"\0\0\0\0\1"
    assert SchemaRegistry(embedded.url).deserialize(data) == FIRST
    assert SchemaRegistry(embedded.url).serializer("payments-value")({"id": 1, "total": None})[:5] == data[:5]


def test_consumer_returns_values_by_their_schemas(our_broker: Broker, embedded: EmbeddedSchemaRegistry) -> None:
    servers = our_broker.bootstrap_servers
    write = SchemaRegistry(embedded.url).serializer("registry-reads-value", PAYMENT)
    with Producer(servers, value_serializer=write) as producer:
        for number in range(3):
            producer.send("registry-reads", {"id": number, "total": None, "tags": []})
    with Producer(servers) as producer:
        producer.send("registry-reads", None)
    wanted = [0, 1, 2, None]
    settings: dict[str, Any] = {"auto_offset_reset": "earliest", "schema_registry_url": embedded.url}

    def number_of(value: Any) -> Any:
        return None if value is None else value["id"]

    found: list[Any] = []
    with Consumer(servers, group_id="registry-reads", **settings) as consumer:
        consumer.subscribe(["registry-reads"])
        while len(found) < len(wanted):
            found += [number_of(record.value) for record in consumer.poll()]
    assert found == wanted

    async def read() -> list[Any]:
        found: list[Any] = []
        async with AsyncConsumer(servers, group_id="registry-reads-async", **settings) as consumer:
            consumer.subscribe(["registry-reads"])
            async for record in consumer:
                found.append(number_of(record.value))
                if len(found) == len(wanted):
                    return found
        return found

    assert asyncio.run(read()) == wanted


@pytest.mark.parametrize("kept_s", [1.0, 0.0])
def test_event_loop_does_not_wait_for_the_registry(
    our_broker: Broker, monkeypatch: pytest.MonkeyPatch, kept_s: float
) -> None:
    monkeypatch.setattr(client, "FAILURE_KEPT_S", kept_s)
    askers: set[threading.Thread] = set()
    ask = SchemaRegistry._ask

    def noted(self: SchemaRegistry, *arguments: Any) -> Any:
        askers.add(threading.current_thread())
        return ask(self, *arguments)

    monkeypatch.setattr(SchemaRegistry, "_ask", noted)
    with Producer(our_broker.bootstrap_servers) as producer:
        producer.send("registry-away", b"\0\0\0\0\7x")

    async def read() -> None:
        settings: dict[str, Any] = {"auto_offset_reset": "earliest", "schema_registry_url": "http://127.0.0.1:9"}
        async with AsyncConsumer(
            our_broker.bootstrap_servers, group_id=f"registry-away-{kept_s}", **settings
        ) as consumer:
            consumer.subscribe(["registry-away"])
            while not (records := await consumer.poll()):
                pass
            with pytest.raises(RetriableError, match="can't be reached"):
                list(records)

    asyncio.run(read())
    assert askers and threading.main_thread() not in askers


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "no schema's id"),
        (b"\0\0\0", "no schema's id"),
        (b"\1\0\0\0\1\2", "no schema's id"),
        (b"\0\0\0\0\x63\2", "has no schema 99"),
        (b"\0\x80\0\0\0\2", "the schema's id 2147483648 is above 2147483647"),
        (b"\0\xff\xff\xff\xff\2", "the schema's id 4294967295 is above 2147483647"),
        (b"\0\0\0\0\1", "no value of the schema 1"),
        (b"\0\0\0\0\1\2\0\0\0", "1 bytes follow it"),
        (b"\0\0\0\0\1\2\0\xfe\xff\xff\xff\xff\xff\xff\xff\xff\1", "no value of the schema 1"),
    ],
)
def test_damaged_value_is_refused(embedded: EmbeddedSchemaRegistry, data: bytes, reason: str) -> None:
    registry = SchemaRegistry(embedded.url)
    registry.register("payments-value", PAYMENT)
    with pytest.raises(CorruptDataError, match=reason):
        registry.deserialize(data)


def test_value_of_another_type_is_not_written(embedded: EmbeddedSchemaRegistry) -> None:
    write = SchemaRegistry(embedded.url).serializer("payments-value", PAYMENT)
    wrong: tuple[Any, ...] = (
        {"id": 2**70, "total": None, "tags": []},
        {"id": "one", "total": None, "tags": []},
        {"id": 1, "total": None, "tags": [], "more": 1},
        {"total": None},
        5,
        None,
    )
    for value in wrong:
        with pytest.raises(InvalidInputError, match="the value is not of the schema"):
            write(value)


def test_huge_value_is_refused_before_it_is_read(embedded: EmbeddedSchemaRegistry) -> None:
    write = SchemaRegistry(embedded.url).serializer("payments-value", PAYMENT)
    value = write({"id": 1, "total": None, "tags": ["x" * client.VALUE_BYTES]})
    with pytest.raises(CorruptDataError, match=f"are more than the {client.VALUE_BYTES}.*max_value_bytes"):
        SchemaRegistry(embedded.url).deserialize(value)
    more = SchemaRegistry(embedded.url, max_value_bytes=2 * client.VALUE_BYTES)
    assert len(more.deserialize(value)["tags"][0]) == client.VALUE_BYTES
    with pytest.raises(CorruptDataError, match="are more than the 100"):
        SchemaRegistry(embedded.url, max_value_bytes=100).deserialize(write({**FIRST, "tags": ["x" * 200]}))


def test_huge_json_is_refused_before_it_is_read() -> None:
    with raw_registry(http_answer({"schema": "{}", "schemaType": "JSON"})) as server:
        with pytest.raises(CorruptDataError, match="are more than the 100"):
            SchemaRegistry(server.url, max_value_bytes=100).deserialize(value_of(1) + b" " * 200)


def test_items_of_many_objects_and_few_bytes_have_a_lower_bound() -> None:
    item: Any = "boolean"
    for level in range(40):
        item = {"type": "record", "name": f"R{level}", "fields": [{"name": "in", "type": item}]}
    schema = json.dumps({"type": "array", "items": item})
    with raw_registry(http_answer({"schema": schema})) as server:
        registry = SchemaRegistry(server.url, max_value_bytes=400)
        items = registry.deserialize(b"\0\0\0\0\1\4\1\0\0")
        assert len(items) == 2
        with pytest.raises(CorruptDataError, match="are more than the 10 "):
            registry.deserialize(b"\0\0\0\0\1\x28" + b"\1" * 20 + b"\0")


RECURSIVE = '{"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}'
LAUGHS = json.dumps(
    {
        "type": "record",
        "name": "Top",
        "fields": [
            {"name": "f0", "type": {"type": "record", "name": "R0", "fields": [{"name": "n", "type": "null"}]}},
            *(
                {
                    "name": f"f{n}",
                    "type": {
                        "type": "record",
                        "name": f"R{n}",
                        "fields": [{"name": f"x{k}", "type": f"R{n - 1}"} for k in range(10)],
                    },
                }
                for n in range(1, 12)
            ),
        ],
    }
)


def within_shop(outer: str, *fields: Any, **more: Any) -> str:
    """Return a record shop.<outer> as JSON."""
    parts = [{"name": f"f{at}", "type": field} for at, field in enumerate(fields)]
    return json.dumps({"type": "record", "name": outer, "namespace": "shop", "fields": parts, **more})


NODE = {
    "type": "record",
    "name": "Node",
    "fields": [{"name": "next", "type": ["null", "Node"]}],
}
ENUM = {"type": "enum", "name": "Node", "symbols": ["A"]}
SHADOWED = json.dumps(
    {
        "type": "record",
        "name": "Node",
        "fields": [
            {
                "name": "shop",
                "type": json.loads(
                    within_shop(
                        "Top",
                        ENUM,
                        {
                            "type": "record",
                            "name": "Inner",
                            "namespace": "",
                            "fields": [{"name": "next", "type": ["null", "Node"]}],
                        },
                    )
                ),
            }
        ],
    }
)
BARE = within_shop("Top", {**ENUM, "namespace": ""}, {**NODE, "namespace": "shop"})
BARE_ENUM = within_shop("Top", {**ENUM, "namespace": ""}, {"type": "array", "items": "Node"})
MARKED = within_shop(
    "Top",
    ENUM,
    "Node",
    __fastavro_parsed=True,
    __named_schemas={"Node": NODE, "shop.Node": {**NODE, "name": "shop.Node"}},
)
HOSTILE = {
    "shadowed name": (SHADOWED, b"\0\2" * 100_000, "without a namespace"),
    "bare name in a namespace": (BARE, b"\0" + b"\2" * 300_000, "is recursive|without a namespace"),
    "bare enum in a namespace": (BARE_ENUM, b"\0", "without a namespace|no Avro schema"),
    "parsed already": (MARKED, b"\0", "fastavro's own"),
    "negative size": (
        '{"type": "array", "items": {"type": "fixed", "name": "F", "size": -1}}',
        b"\xc0\x84\x3d",
        "a fixed without a size",
    ),
    "name that is a list": ('{"type": "enum", "name": ["."], "symbols": ["A"]}', b"\0", "no Avro schema"),
    "endless size": (
        '{"type": "fixed", "name": "F", "size": Infinity, "logicalType": "decimal", "precision": 4}',
        b"\0",
        "a fixed without a size",
    ),
    "recursive": (RECURSIVE, b"\2" * 300_000, "is recursive"),
    "empty items": ('{"type": "array", "items": "null"}', b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f", "takes no bytes"),
    "exponential": (LAUGHS, b"", "more than 10000 parts"),
    "deep": ('{"type":"array","items":' * 200 + '"int"' + "}" * 200, b"", "deeper than 150"),
    "bottomless": ("[" * 100_000, b"", "no Avro schema"),
    "no schema": ('{"type": "record"}', b"", "no Avro schema"),
    "undefined": ('"shop.Payment"', b"", "no Avro schema: UnknownType"),
    "refused by fastavro": ('{"type": "enum", "name": "E", "symbols": ["1 2"]}', b"\0", "no Avro schema"),
}


SUM = '{"type": "bytes", "logicalType": "decimal", "precision": 40, "scale": 2}'
FIXED_SUM = '{"type": "fixed", "name": "F", "size": 100, "logicalType": "decimal", "precision": 40, "scale": 2}'


def bytes_value(data: bytes) -> bytes:
    """Return Avro bytes of at most 8191 behind the id 1."""
    length = 2 * len(data)
    return b"\0\0\0\0\1" + bytes([length & 0x7F | 0x80, length >> 7]) + data


def test_decimal_is_read_up_to_a_bound_of_bytes() -> None:
    with raw_registry(http_answer({"schema": SUM})) as server:
        registry = SchemaRegistry(server.url)
        assert registry.deserialize(bytes_value((-12345).to_bytes(8, "big", signed=True))) == Decimal("-123.45")
        assert registry.deserialize(bytes_value((10**40 - 1).to_bytes(64, "big"))) == Decimal("9" * 38 + ".99")
        assert registry.deserialize(bytes_value(b"")) == 0
        with pytest.raises(CorruptDataError, match="a decimal of 65 bytes"):
            registry.deserialize(bytes_value(bytes(65)))
        with pytest.raises(CorruptDataError, match="more digits than its precision of 40"):
            registry.deserialize(bytes_value((10**40).to_bytes(20, "big")))
    with raw_registry(http_answer({"schema": FIXED_SUM})) as server:
        with pytest.raises(CorruptDataError, match="a decimal of 100 bytes"):
            SchemaRegistry(server.url).deserialize(b"\0\0\0\0\1" + bytes(100))


def test_decimal_is_written_and_read_back(embedded: EmbeddedSchemaRegistry) -> None:
    schema = f'{{"type": "record", "name": "R", "fields": [{{"name": "sums", "type": ["null", {SUM}]}}]}}'
    registry = SchemaRegistry(embedded.url)
    value = {"sums": Decimal("12.30")}
    assert registry.deserialize(registry.serializer("sums-value", schema)(value)) == value


@pytest.mark.parametrize(
    "kind",
    [
        {"type": "bytes", "logicalType": "decimal", "precision": 64, "scale": 127},
        {"type": "bytes", "logicalType": "decimal"},
        {"type": "bytes", "logicalType": "decimal", "precision": 10, "scale": -2},
        {"type": "fixed", "name": "F", "size": 1, "logicalType": "decimal", "precision": 9},
    ],
    ids=["scale above precision", "no precision", "negative scale", "fixed"],
)
def test_invalid_decimal_is_bytes(embedded: EmbeddedSchemaRegistry, kind: dict[str, Any]) -> None:
    """Connect writes the first for an Oracle NUMBER without digits. Avro has readers ignore such a logical type."""
    fields = [{"name": "id", "type": "int"}, {"name": "sum", "type": ["null", kind], "default": None}]
    schema = json.dumps({"type": "record", "name": "R", "fields": fields})
    registry = SchemaRegistry(embedded.url)
    data = registry.serializer("numbers-value", schema)({"id": 1, "sum": b"\5"})
    assert registry.deserialize(data) == {"id": 1, "sum": b"\5"}


def test_value_is_read_by_a_schema_with_a_default_that_is_no_value_of_its_field() -> None:
    """Confluent's registry has such schemas. A value of theirs has the field, and needs no default."""
    fields = [{"name": "a", "type": "string", "default": None}, {"name": "b", "type": "int", "default": "0"}]
    schema = {"type": "record", "name": "R", "fields": fields}
    with raw_registry(http_answer({"schema": json.dumps(schema)})) as server:
        assert SchemaRegistry(server.url).deserialize(b"\0\0\0\0\1\x02x\x04") == {"a": "x", "b": 2}


def test_json_is_read_after_its_prefix_and_not_compared() -> None:
    with raw_registry(http_answer({"schema": '{"type": "object"}', "schemaType": "JSON"})) as server:
        registry = SchemaRegistry(server.url)
        assert registry.deserialize(b'\0\0\0\0\1{"id": [1, null]}') == {"id": [1, None]}
        assert registry.deserialize(b"\0\0\0\0\1" + b"7") == 7
        for damaged in (b"", b"{", b"\xff", b"1 2", b"[" * 100_000):
            with pytest.raises(CorruptDataError, match="no JSON"):
                registry.deserialize(b"\0\0\0\0\1" + damaged)


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_schema_is_refused_before_its_values(kind: str) -> None:
    schema, data, reason = HOSTILE[kind]
    with raw_registry(http_answer({"schema": schema})) as server:
        registry = SchemaRegistry(server.url)
        for _ in range(3):
            with pytest.raises(CorruptDataError, match=reason):
                registry.deserialize(b"\0\0\0\0\1" + data)
        assert len(server.requests) == 1, "a refused schema is not asked for again"


ANSWERS: dict[str, tuple[bytes, type[KafkaError], str]] = {
    "redirect": (http_answer({}, "302 Found", "Location: http://127.0.0.1:1/"), InvalidInputError, "redirects"),
    "login": (http_answer({"error_code": 401, "message": "no"}, "401 Unauthorized"), NotAuthorizedError, "401: no"),
    "fault": (http_answer(b"<html>", "503 Unavailable"), RetriableError, "503: <html>"),
    "too many": (http_answer({}, "429 Too Many"), RetriableError, "429"),
    "no registry": (http_answer(b"<html>", "404 Not Found"), InvalidInputError, "is it a schema registry"),
    "not found": (http_answer({"error_code": 40403}, "404 Not Found"), CorruptDataError, "has no schema 1"),
    "no JSON": (http_answer(b"hello"), InvalidInputError, "other than JSON"),
    "a list": (http_answer([1]), InvalidInputError, "other than JSON"),
    "nested": (http_answer(b"[" * 100_000), InvalidInputError, "other than JSON"),
    "without schema": (http_answer({"id": 1}), CorruptDataError, "without a schema"),
    "number": (http_answer({"schema": 7}), CorruptDataError, "without a schema"),
    "references": (http_answer({"schema": '"int"', "references": [{"name": "x"}]}), CorruptDataError, "references"),
    "kind": (http_answer({"schema": "x", "schemaType": "XML"}), CorruptDataError, "kind XML"),
    "cut off": (http_answer({"schema": '"int"'})[:-3], RetriableError, "can't be reached"),
    "no HTTP": (b"SSH-2.0-OpenSSH\r\n", RetriableError, "can't be reached"),
    "nothing": (b"", RetriableError, "can't be reached"),
    "large schema": (http_answer({"schema": "x" * (client.SCHEMA_BYTES_MAX + 1)}), CorruptDataError, "than 1048576"),
    "large answer": (http_answer(b" " * (client.ANSWER_BYTES_MAX + 10)), InvalidInputError, "than 4194304"),
    "endless header": (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000, RetriableError, "can't be reached"),
}


@pytest.mark.parametrize("kind", ANSWERS)
def test_registry_that_answers_badly_is_reported(kind: str) -> None:
    answer, error, reason = ANSWERS[kind]
    with raw_registry(answer) as server:
        with pytest.raises(error, match=reason):
            SchemaRegistry(server.url).deserialize(b"\0\0\0\0\1\2")
        assert server.requests == ["GET /schemas/ids/1 HTTP/1.1"]


def test_trickling_answer_ends_in_time() -> None:
    with raw_registry(http_answer({"schema": '"int"'}), pace_s=0.05) as server:
        with pytest.raises(TimedOutError, match="did not answer within"):
            SchemaRegistry(server.url, timeout_ms=300).schema(1)


def test_second_address_answers_when_the_first_is_away(embedded: EmbeddedSchemaRegistry) -> None:
    registry = SchemaRegistry(f"http://127.0.0.1:9,{embedded.url}")
    assert registry.register("payments-value", PAYMENT) == 1
    assert registry.schema(1).text == PAYMENT


def test_unknown_id_is_asked_once_and_failures_for_a_second() -> None:
    with raw_registry(http_answer({"error_code": 40403}, "404 Not Found")) as server:
        registry = SchemaRegistry(server.url)
        for _ in range(20):
            with pytest.raises(CorruptDataError):
                registry.deserialize(b"\0\0\0\0\1\2")
        assert len(server.requests) == 1
    with raw_registry(http_answer({}, "503 Unavailable")) as server:
        registry = SchemaRegistry(server.url, timeout_ms=60_000)
        for _ in range(20):
            with pytest.raises(RetriableError):
                registry.deserialize(b"\0\0\0\0\1\2")
        assert len(server.requests) < 20


NOT_FOUND = http_answer({"error_code": 40403}, "404 Not Found")


def value_of(number: int) -> bytes:
    """Return a value behind the id of a schema."""
    return b"\0" + number.to_bytes(4, "big") + b"\2"


def test_failures_are_bounded_and_hold_no_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "FAILURES_BYTES_MAX", 5_000)
    monkeypatch.setattr(client, "UNKNOWN_PER_S", 1_000)
    long = http_answer(b"<html>" + b"x" * 100_000, "400 Bad")
    with raw_registry(long) as server:
        registry = SchemaRegistry(server.url)
        for number in range(30):
            with pytest.raises(InvalidInputError):
                registry.deserialize(value_of(number))
        held = list(registry._failures.values())
        assert 5 < len(held) < 30
        assert sum(len(failure.text) for failure in held) <= 5_000
        assert not any(isinstance(part, BaseException) for part in gc.get_referents(*held))


def test_expired_failures_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "UNKNOWN_KEPT_S", 0.0)
    with raw_registry(NOT_FOUND) as server:
        registry = SchemaRegistry(server.url)
        for number in range(5):
            with pytest.raises(CorruptDataError):
                registry.deserialize(value_of(number))
        assert list(registry._failures) == [4]


def test_unknown_ids_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [1_000.0]
    monkeypatch.setattr(client, "UNKNOWN_PER_S", 5)

    def sleep(wait_s: float) -> None:
        clock[0] += wait_s

    replace_time(monkeypatch, client, monotonic=lambda: clock[0], sleep=sleep)
    with raw_registry(NOT_FOUND) as server:
        registry = SchemaRegistry(server.url)
        registry.prepare(value_of(number) for number in range(20))
        assert len(server.requests) == 5
        with pytest.raises(RetriableError, match="more than 5 unknown ids"):
            registry.deserialize(value_of(30))
        clock[0] += 1.0
        with pytest.raises(CorruptDataError, match="has no schema 30"):
            registry.deserialize(value_of(30))
        assert len(server.requests) == 6
        for number in range(40, 60):  # waits, since a caller that asks for one schema has no records to read again
            with pytest.raises(NotFoundError):
                registry.schema(number)
        assert len(server.requests) == 26
        assert clock[0] > 1_003.0


def test_known_ids_cost_no_budget(embedded: EmbeddedSchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "UNKNOWN_PER_S", 1)
    registry = SchemaRegistry(embedded.url)
    texts = [json.dumps({"type": "enum", "name": f"E{n}", "symbols": ["A"]}) for n in range(5)]
    numbers = [registry.register(f"s{n}", text) for n, text in enumerate(texts)]
    assert [registry.schema(number).text for number in numbers] == texts


def test_registry_that_is_down_fails_once_for_all_ids() -> None:
    with raw_registry(http_answer({}, "503 Unavailable")) as server:
        registry = SchemaRegistry(server.url, timeout_ms=60_000)
        registry.prepare(value_of(number) for number in range(200))
        with pytest.raises(RetriableError, match="503"):
            registry.deserialize(value_of(300))
        assert len(server.requests) < 20


def test_prepared_values_are_read_without_a_request() -> None:
    with raw_registry(http_answer({"schema": '"int"'})) as server:
        registry = SchemaRegistry(server.url)
        registry.prepare([value_of(1)])
        assert registry.deserialize_prepared(value_of(1)) == 1
        with pytest.raises(RetriableError, match="the schema 2 was not looked up"):
            registry.deserialize_prepared(value_of(2))
        assert len(server.requests) == 1


def test_cache_is_bounded_in_bytes(embedded: EmbeddedSchemaRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "CACHE_BYTES_MAX", 5_000)
    registry = SchemaRegistry(embedded.url)
    texts = [json.dumps({"type": "enum", "name": f"E{n}", "symbols": ["x" * 300]}) for n in range(30)]
    numbers = [registry.register(f"s{n}", text) for n, text in enumerate(texts)]
    for number, text in zip(numbers, texts, strict=True):
        assert registry.schema(number).text == text
    assert registry._bytes <= 5_000
    assert registry._bytes == sum(map(client._bytes_of, registry._schemas.values()))
    assert list(registry._schemas)[-1] == numbers[-1]


def test_password_is_sent_and_never_shown() -> None:
    with raw_registry(http_answer({}, "401 Unauthorized")) as server:
        url = server.url.replace("http://", "http://user:s3cr%3At@")
        with pytest.raises(NotAuthorizedError) as refused:
            SchemaRegistry(url).schema(1)
        assert "s3cr" not in str(refused.value)
    assert "s3cr" not in repr(Consumer(schema_registry_url=url).config)


@pytest.mark.parametrize(
    "url",
    [
        *("http://who:s3cr#et@h", "http://who:s3cr?et@h", "http://who:s3cr/et@h", "http://who:80/s3cr@h"),
        *("http://who:80?s3cr@h", "http://who:80#s3cr@h", "http://who:s3cr@h:port", "who:s3cr@h", "http://who:s3cr@[h"),
        *("ftp://who:s3cr@h", "http://who:s3cr@", "http:who:s3cr@h"),
        *("http://h,http://who:s3cr@h:port", "http://who:s3cr@h?a", "http://who:s3cr,et@h:port"),
    ],
)
def test_url_that_is_refused_is_not_shown(url: str) -> None:
    with pytest.raises(InvalidInputError, match="schema registry's URL") as refused:
        SchemaRegistry(url)
    assert "s3cr" not in str(refused.value) and "who" not in str(refused.value)


def test_comma_in_a_password_is_no_separator() -> None:
    with raw_registry(http_answer({}, "401 Unauthorized")) as server:
        host = server.url.removeprefix("http://")
        with pytest.raises(NotAuthorizedError) as refused:
            SchemaRegistry(f"http://who:s3cr,et@{host}").schema(1)
        assert host in str(refused.value)
        assert "s3cr" not in str(refused.value) and "et@" not in str(refused.value)


@pytest.mark.parametrize("given", [["http://who:s3cr@h"], b"http://who:s3cr@h", {"http://who:s3cr@h": 1}])
def test_url_of_another_type_is_not_shown(given: Any) -> None:
    for make in (SchemaRegistry, lambda url: Consumer(schema_registry_url=url)):
        with pytest.raises(InvalidInputError) as refused:
            make(given)
        assert "s3cr" not in str(refused.value)
        assert type(given).__name__ in str(refused.value)


def test_misplaced_settings_do_not_show_the_url() -> None:
    with pytest.raises(InvalidInputError) as refused:
        Consumer({"schema.registry.url": "http://who:s3cr@h"})  # type: ignore[arg-type]
    assert "s3cr" not in str(refused.value)


@pytest.mark.parametrize("url", ["registry:8081", "ftp://registry", "http://", "http://h:99999", "http://h/?a=1", ""])
def test_url_of_another_form_is_refused(url: str) -> None:
    with pytest.raises(InvalidInputError, match="schema registry's URL"):
        SchemaRegistry(url)


def test_two_deserializers_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="give one of them"):
        Consumer(schema_registry_url="http://127.0.0.1:8081", value_deserializer=bytes.decode)


def test_subject_without_schemas_is_not_found(embedded: EmbeddedSchemaRegistry) -> None:
    with pytest.raises(NotFoundError, match="Subject 'a/b' not found"):
        SchemaRegistry(embedded.url).latest("a/b")
