"""Schemas of the registry are records: what the topic has twice, or under an id of another, is a fault."""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator

import pytest
from frameworks.account import Numbered
from frameworks.karapace import SCHEMAS, SchemaOutput, record_of, schema_of

from kohort import Admin, Broker
from kohort.client.admin.values import NewTopic

FIRST, SECOND = Numbered("key-1", 0), Numbered("key-1", 1)


@pytest.fixture
def output(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaOutput]:
    with Broker(tmp_path_factory.mktemp("broker")) as broker:
        with Admin(broker.bootstrap_servers) as admin:
            admin.create_topics([NewTopic(SCHEMAS, 1)]).all()
        output = SchemaOutput(broker.bootstrap_servers, [], queue.Queue())
        yield output
        output.close()


def stored(record: Numbered, schema_id: int, version: int) -> tuple[bytes, bytes]:
    key = {"keytype": "SCHEMA", "subject": record.key, "version": version}
    return json.dumps(key).encode(), json.dumps(
        {"schema": schema_of(record), "id": schema_id, "version": version}
    ).encode()


def test_schema_is_its_record() -> None:
    assert record_of(schema_of(Numbered("key-12", 34))) == Numbered("key-12", 34)


def test_topic_with_each_schema_once_has_no_fault(output: SchemaOutput) -> None:
    assert output.check_stored(b'{"keytype":"NOOP"}', b"{}") is None
    assert output.check_stored(*stored(FIRST, 1, 1)) is None
    assert output.check_stored(*stored(SECOND, 2, 2)) is None
    assert output.check_stored(*stored(FIRST, 1, 1)) is None, "the same place again is no second schema"


def test_schema_with_a_second_place_is_repeated_and_a_shared_id_unknown(output: SchemaOutput) -> None:
    assert output.check_stored(*stored(FIRST, 1, 1)) is None
    assert output.check_stored(*stored(FIRST, 2, 2)) == FIRST
    assert output.check_stored(*stored(SECOND, 1, 3)) == Numbered("key-1", -1)
