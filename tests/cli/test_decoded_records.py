"""`kohort consume --schema-registry` and the dashboard's records: values by their schemas."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest
from tests.support.processes import KOHORT
from tests.support.waiting import until

from kohort import Admin, Broker, Consumer, Producer, SchemaRegistry, TopicPartition
from kohort.cli.consume import ValueDecoder, record_writer
from kohort.client.admin.values import NewTopic
from kohort.dashboard.cluster_lookups import ClusterLookups
from kohort.dashboard.record_peek import DECODE_S, DECODED_BYTES_MAX, PeekRequest, _Decoding
from kohort.errors import CorruptDataError
from kohort.schema_registry.embedded import EmbeddedSchemaRegistry
from kohort.schema_registry.shown_values import value_as_json

PAYMENT = json.dumps(
    {
        "type": "record",
        "name": "Payment",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "sum", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "raw", "type": "bytes"},
            {"name": "rate", "type": "double"},
            {"name": "note", "type": "string"},
        ],
    }
)
VALUE: dict[str, Any] = {
    "id": 2**62,
    "at": datetime(2026, 1, 31, 12, tzinfo=UTC),
    "sum": Decimal("12.30"),
    "raw": b"\0\xff",
    "rate": float("nan"),
    "note": "é\x1b",
}
SHOWN = {"id": 2**62, "at": "2026-01-31T12:00:00Z", "sum": "12.30", "raw": "AP8=", "rate": "nan", "note": "é\x1b"}


@pytest.fixture(scope="module")
def registry() -> Iterator[EmbeddedSchemaRegistry]:
    with EmbeddedSchemaRegistry() as running:
        yield running


@pytest.fixture(scope="module")
def topic(our_broker: Broker, registry: EmbeddedSchemaRegistry) -> str:
    """A value of Avro, one of JSON, null, text without an id, an id without a schema, and one too large to show."""
    client = SchemaRegistry(registry.url)
    avro = client.serializer("decoded-value", PAYMENT)
    plain = client.serializer("decoded-json", '{"type": "object"}', kind="JSON")
    with Admin(our_broker.bootstrap_servers) as admin:
        admin.create_topics([NewTopic("decoded", 1)]).all()
    with Producer(our_broker.bootstrap_servers) as producer:
        large = plain({"x": "y" * DECODED_BYTES_MAX})
        for value in (avro(VALUE), plain({"page": "/"}), None, b"plain", b"\0\0\0\0\x63x", large):
            producer.send("decoded", value)
    return "decoded"


def consumed(broker: Broker, *args: str) -> subprocess.CompletedProcess[str]:
    return kohort(broker, "consume", "decoded", "--from-beginning", "--until-end", *args)


def kohort(broker: Broker, *args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [*KOHORT, *args, "--bootstrap-server", broker.bootstrap_servers]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False)


def test_text_is_json_where_a_schema_reads_the_value(
    our_broker: Broker, registry: EmbeddedSchemaRegistry, topic: str
) -> None:
    done = consumed(our_broker, "--schema-registry", registry.url)
    lines = done.stdout.split("\n")
    assert [json.loads(line) for line in lines[:2]] == [SHOWN, {"page": "/"}]
    assert lines[2:4] == ["", "plain"]
    assert (
        "2 values can't be read by a schema, and are shown as they are; decoded-0, offset 3: no schema's id"
        in done.stderr
    )


def test_json_has_the_bytes_and_what_they_mean(
    our_broker: Broker, registry: EmbeddedSchemaRegistry, topic: str, tmp_path: Path
) -> None:
    settings = tmp_path / "client.properties"
    settings.write_text(f"schema.registry.url={registry.url}\n")
    done = consumed(our_broker, "--json", "--command-config", str(settings))
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["decoded"] for row in rows][:5] == [SHOWN, {"page": "/"}, None, None, None]
    assert rows[1]["value"] == '\0\0\0\0\x02{"page":"/"}'
    again = kohort(our_broker, "produce", "decoded-again", "--format", "json", stdin=done.stdout)
    assert again.returncode == 0, again.stderr


def test_registry_that_is_away_ends_the_command(our_broker: Broker, topic: str) -> None:
    done = consumed(our_broker, "--schema-registry", "http://127.0.0.1:9")
    assert done.returncode == 1 and "can't be reached" in done.stderr


@pytest.mark.parametrize(
    ("args", "words"),
    [
        pytest.param(
            ("--schema-registry", "http://u:s3@127.0.0.1:9"), "into the file of --command-config", id="password"
        ),
        pytest.param(("--schema-registry", "registry"), "--schema-registry: a schema registry's URL", id="no URL"),
        pytest.param(
            ("--schema-registry", "http://127.0.0.1:9", "--format", "parquet", "--output", "x"),
            "text and json",
            id="parquet",
        ),
    ],
)
def test_option_that_does_not_fit_is_refused(our_broker: Broker, topic: str, args: tuple[str, ...], words: str) -> None:
    done = consumed(our_broker, *args)
    assert done.returncode == 2 and words in done.stderr and "s3" not in done.stderr


def test_page_shows_values_by_their_schemas(our_broker: Broker, registry: EmbeddedSchemaRegistry, topic: str) -> None:
    by_file = ClusterLookups(our_broker.bootstrap_servers, {}, {"schema.registry.url": registry.url})
    by_option = ClusterLookups(our_broker.bootstrap_servers, {}, {}, registry_url=registry.url)
    for lookups in (by_file, by_option):
        found = [record["value"] for record in lookups.records(PeekRequest(topic, partition=0, offset=0))["records"]]
        assert json.loads(found[0]["text"]) == SHOWN and (found[0]["schema"], found[0]["json"]) == (1, True)
        assert found[1] == {"size": 17, "cut": False, "text": '{\n  "page": "/"\n}', "json": True, "schema": 2}
        assert found[2] is None and found[3] == {"size": 5, "cut": False, "text": "plain", "json": False}
        assert "has no schema 99" in found[4]["problem"] and found[4]["text"] == "\0\0\0\0cx"
        assert "bytes are more than" in found[5]["problem"] and found[5]["cut"]
    bare = ClusterLookups(our_broker.bootstrap_servers, {}, {})
    assert "schema" not in bare.records(PeekRequest(topic, partition=0, offset=0))["records"][0]["value"]


def test_look_asks_a_registry_that_is_away_once(our_broker: Broker, topic: str) -> None:
    lookups = ClusterLookups(our_broker.bootstrap_servers, {}, {}, registry_url="http://127.0.0.1:9")
    found = [record["value"] for record in lookups.records(PeekRequest(topic, partition=0, offset=0))["records"]]
    assert "can't be reached" in found[0]["problem"] and found[0]["base64"].startswith("AAAAAA")
    assert found[1]["problem"] == found[0]["problem"] and "problem" not in found[3]


def test_value_too_deep_to_show_is_damaged(registry: EmbeddedSchemaRegistry) -> None:
    client = SchemaRegistry(registry.url)
    number = client.register("deep-value", "{}", "JSON")
    prefix = b"\0" + number.to_bytes(4, "big")
    for levels in (980, 100_000):
        with pytest.raises(CorruptDataError, match="can't be shown|no JSON"):
            value_as_json(client, prefix + b"[" * levels + b"]" * levels)
    assert msgspec.json.decode(value_as_json(client, prefix + b"[1e999]")) == ["inf"]


def test_json_much_larger_than_its_value_is_not_made(registry: EmbeddedSchemaRegistry) -> None:
    """A value names a field, or an enum's symbol, with one byte."""
    client, name = SchemaRegistry(registry.url), "n" * 20_000
    symbols = {"type": "array", "items": {"type": "enum", "name": "E", "symbols": [name]}}
    fields = {"type": "array", "items": {"type": "record", "name": "R", "fields": [{"name": name, "type": "int"}]}}
    for subject, schema, item in (("symbols-value", symbols, name), ("fields-value", fields, {name: 1})):
        data = client.serializer(subject, json.dumps(schema))([item] * 2_000)
        assert len(data) < 5_000
        with pytest.raises(CorruptDataError, match="more than 32 MiB of text"):
            value_as_json(client, data)


def test_lines_are_written_before_all_are_made(registry: EmbeddedSchemaRegistry, tmp_path: Path) -> None:
    client, name = SchemaRegistry(registry.url), "n" * 20_000
    schema = {"type": "array", "items": {"type": "enum", "name": "E", "symbols": [name]}}
    value = client.serializer("wide-value", json.dumps(schema))([name] * 500)
    rows = {"topic": ["t"] * 4, "partition": [0] * 4, "offset": list(range(4)), "value": [value] * 4}
    written: list[int] = []

    class Decoded(ValueDecoder):
        def decode_batch(self, batch: Any) -> Iterator[bytes | None]:
            for shown in super().decode_batch(batch):
                written.append(file.stat().st_size)
                yield shown

    file = tmp_path / "lines"
    with record_writer("text", file, False, None, Decoded(registry.url)) as writer:
        writer.write(pa.record_batch(rows))
    assert written[-1] > 25_000_000
    assert file.stat().st_size == 4 * (len(json.dumps([name] * 500, separators=(",", ":"))) + 1)


def test_map_of_booleans_is_shown(registry: EmbeddedSchemaRegistry) -> None:
    client = SchemaRegistry(registry.url)
    text = 'syntax = "proto3"; message M { map<bool, int32> flags = 1; map<int64, bool> numbers = 2; }'
    data = client.serializer("flags-value", text, kind="PROTOBUF")({"flags": {True: 1}, "numbers": {-5: False}})
    assert msgspec.json.decode(value_as_json(client, data)) == {"flags": {"true": 1}, "numbers": {"-5": False}}


def test_look_ends_to_read_values_after_a_while(
    our_broker: Broker, registry: EmbeddedSchemaRegistry, topic: str
) -> None:
    """A look of the largest values took minutes of CPU, and a slow registry as long."""
    ages = iter([0.0, 0.0, 0.0, *[DECODE_S + 1] * 1_000])
    decoding = _Decoding(SchemaRegistry(registry.url), lambda: next(ages))
    with Consumer(our_broker.bootstrap_servers) as consumer:
        consumer.assign([TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        records: list[Any] = []
        until(lambda: records.extend(consumer.poll(timeout_ms=200)) or len(records) >= 6, "all are read", 30)
    found = [decoding.value_view(record.value) for record in records]
    assert [view is not None and "schema" in view for view in found] == [True, True, False, False, False, False]
    assert found[4] is not None and "look at fewer records" in found[4]["problem"]
