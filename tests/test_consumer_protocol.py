"""The "consumer" protocol's bytes against kio, an independent implementation, at every version, both ways."""

from __future__ import annotations

import importlib
import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.serial import entity_reader, entity_writer

from kohort.consumer_protocol import (
    NEWEST_VERSION,
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    read_assignment,
    read_subscription,
    write_assignment,
    write_subscription,
)
from kohort.ids import TopicPartition, by_topic

VERSIONS = range(NEWEST_VERSION + 1)
NAMES = st.text(min_size=1, max_size=5)
PARTITIONS = st.sets(st.builds(TopicPartition, NAMES, st.integers(0, 2**31 - 1)), max_size=6).map(sorted).map(tuple)
DATA = st.none() | st.binary(max_size=9)


def kio(kind: str, version: int) -> Any:
    module = importlib.import_module(f"kio.schema.consumer_protocol_{kind.lower()}.v{version}.data")
    return getattr(module, f"ConsumerProtocol{kind}")


def rewritten(kind: str, version: int, raw: bytes) -> tuple[Any, bytes]:
    """Return the payload that kio reads after the version number, and writes again."""
    cls = kio(kind, version)
    instance, _ = entity_reader(cls)(raw[2:], 0)
    out = io.BytesIO()
    entity_writer(cls)(out, instance)
    return instance, raw[:2] + out.getvalue()


@pytest.mark.parametrize("version", VERSIONS)
@given(st.lists(NAMES, max_size=4), PARTITIONS, st.none() | NAMES, st.integers(-1, 2**31 - 1), DATA)
def test_a_subscription_agrees_with_kio(
    version: int,
    topics: list[str],
    owned: tuple[TopicPartition, ...],
    rack: str | None,
    generation: int,
    data: bytes | None,
) -> None:
    said = ConsumerProtocolSubscription(
        version,
        tuple(topics),
        owned if version >= 1 else (),
        rack if version >= 3 else None,
        generation if version >= 2 else -1,
        data,
    )
    raw = write_subscription(said)
    assert read_subscription(raw) == said
    theirs, again = rewritten("Subscription", version, raw)
    assert list(theirs.topics) == topics
    assert theirs.user_data == data
    assert again == raw


@pytest.mark.parametrize("version", VERSIONS)
@given(PARTITIONS, DATA)
def test_an_assignment_agrees_with_kio(
    version: int, partitions: tuple[TopicPartition, ...], data: bytes | None
) -> None:
    raw = write_assignment(version, partitions, data)
    assert read_assignment(raw) == ConsumerProtocolAssignment(partitions, data)
    theirs, again = rewritten("Assignment", version, raw)
    found = {str(topic.topic): list(topic.partitions) for topic in theirs.assigned_partitions}
    assert found == by_topic(partitions)
    assert again == raw


def test_newer_versions_are_read_as_far_as_they_are_known() -> None:
    said = ConsumerProtocolSubscription(NEWEST_VERSION, ("t",), (TopicPartition("t", 1),), "a", 7, b"x")
    raw = (NEWEST_VERSION + 5).to_bytes(2, "big") + write_subscription(said)[2:] + b"more"
    assert read_subscription(raw) == said._replace(version=NEWEST_VERSION + 5)
    assert write_subscription(said._replace(version=NEWEST_VERSION + 5)) == write_subscription(said)
    assert read_assignment(b"\0\x09" + write_assignment(0, said.owned)[2:] + b"more") == ConsumerProtocolAssignment(
        said.owned
    )


@pytest.mark.parametrize("raw", [b"\xff\xff" + b"\0" * 8, b"\0", b"\0\0\0\0\0\1"])
def test_what_is_neither_is_none(raw: bytes) -> None:
    assert read_subscription(raw) is None
    assert read_assignment(raw) is None
