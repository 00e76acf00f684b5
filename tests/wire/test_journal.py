"""The journal's records against bytes that Apache Kafka 4.4.0 wrote for the same values."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from kohort.wire import journal as j
from kohort.wire.message import Message
from kohort.wire.schema import WireError

_ID = UUID(int=(1 << 64) + 2)
_CLASSIC = j.ConsumerGroupMemberMetadataValue.ClassicMemberMetadata(
    session_timeout_ms=9,
    supported_protocols=[j.ConsumerGroupMemberMetadataValue.ClassicProtocol(name="range", metadata=b"\x01")],
)


def _parts(number: int) -> j.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions:
    return j.ConsumerGroupCurrentMemberAssignmentValue.TopicPartitions(topic_id=_ID, partitions=[number])


def _offset(version: int) -> Message:
    value = j.OffsetCommitValue(offset=42, metadata="m", commit_timestamp=1000)
    if version == 1:
        value.expire_timestamp = 2000
    if version >= 3:
        value.leader_epoch = 5
    if version == 4:
        value.topic_id = _ID
    return value


def _group(version: int) -> Message:
    member = j.GroupMetadataValue.MemberMetadata(
        member_id="m1", client_id="c", client_host="/h", session_timeout=10000, subscription=b"\1\2", assignment=b"\3"
    )
    if version >= 1:
        member.rebalance_timeout = 60000
    if version >= 3:
        member.group_instance_id = "i"
    value = j.GroupMetadataValue(
        protocol_type="consumer", generation=7, protocol="range", leader="m1", members=[member]
    )
    if version >= 2:
        value.current_state_timestamp = 99
    return value


def _transaction(version: int) -> Message:
    value = j.TransactionLogValue(
        producer_id=8,
        producer_epoch=2,
        transaction_timeout_ms=60000,
        transaction_status=1,
        transaction_partitions=[j.TransactionLogValue.PartitionsSchema(topic="t", partition_ids=[0, 1])],
        transaction_last_update_timestamp_ms=11,
        transaction_start_timestamp_ms=10,
    )
    if version == 1:
        value.previous_producer_id, value.next_producer_id, value.client_transaction_version = 7, 9, 2
    return value


_EMPTY: dict[str, Any] = {"instance_id": "", "rack_id": "", "subscribed_topic_regex": "", "server_assignor": ""}

# Value, version, bytes: the version as int16 and the fields.
KAFKA = [
    (j.LegacyOffsetCommitKey(group="g", topic="t", partition=3), 0, "000000016700017400000003"),
    (j.OffsetCommitKey(group="g", topic="t", partition=3), 0, "000000016700017400000003"),
    (_offset(0), 0, "0000000000000000002a00016d00000000000003e8"),
    (_offset(1), 1, "0001000000000000002a00016d00000000000003e800000000000007d0"),
    (_offset(2), 2, "0002000000000000002a00016d00000000000003e8"),
    (_offset(3), 3, "0003000000000000002a0000000500016d00000000000003e8"),
    (_offset(4), 4, "0004000000000000002a00000005026d00000000000003e801001000000000000000010000000000000002"),
    (j.GroupMetadataKey(group="g"), 0, "0000000167"),
    (
        _group(0),
        0,
        (
            "00000008636f6e73756d657200000007000572616e676500026d310000000100026d3100016300022f68000027100000"
            "000201020000000103"
        ),
    ),
    (
        _group(1),
        1,
        (
            "00010008636f6e73756d657200000007000572616e676500026d310000000100026d3100016300022f680000ea600000"
            "27100000000201020000000103"
        ),
    ),
    (
        _group(2),
        2,
        (
            "00020008636f6e73756d657200000007000572616e676500026d3100000000000000630000000100026d310001630002"
            "2f680000ea60000027100000000201020000000103"
        ),
    ),
    (
        _group(3),
        3,
        (
            "00030008636f6e73756d657200000007000572616e676500026d3100000000000000630000000100026d310001690001"
            "6300022f680000ea60000027100000000201020000000103"
        ),
    ),
    (
        _group(4),
        4,
        (
            "000409636f6e73756d6572000000070672616e6765036d31000000000000006302036d3102690263032f680000ea6000"
            "00271003010202030000"
        ),
    ),
    (j.ConsumerGroupMetadataKey(group_id="g"), 0, "0000000167"),
    (j.ConsumerGroupMetadataValue(epoch=5, metadata_hash=77), 0, "000000000005010008000000000000004d"),
    (j.ConsumerGroupPartitionMetadataKey(group_id="g"), 0, "0000000167"),
    (
        j.ConsumerGroupPartitionMetadataValue(
            topics=[j.ConsumerGroupPartitionMetadataValue.TopicMetadata(topic_id=_ID, topic_name="t", num_partitions=2)]
        ),
        0,
        "00000200000000000000010000000000000002027400000002010000",
    ),
    (j.ConsumerGroupMemberMetadataKey(group_id="g", member_id="m"), 0, "000000016700016d"),
    (
        j.ConsumerGroupMemberMetadataValue(
            instance_id="i",
            rack_id="r",
            client_id="c",
            client_host="/h",
            subscribed_topic_names=["t", "u"],
            subscribed_topic_regex="a.*",
            rebalance_timeout_ms=45000,
            server_assignor="uniform",
            classic_member_metadata=_CLASSIC,
        ),
        0,
        "0000026902720263032f68030274027504612e2a0000afc808756e69666f726d0100100100000009020672616e676502010000",
    ),
    (j.ConsumerGroupMemberMetadataValue(**_EMPTY), 0, "0000010101010101ffffffff0100"),
    (
        j.ConsumerGroupMemberMetadataValue(**_EMPTY, classic_member_metadata=None),
        0,
        "0000010101010101ffffffff0101000100",
    ),
    (j.ConsumerGroupTargetAssignmentMetadataKey(group_id="g"), 0, "0000000167"),
    (j.ConsumerGroupTargetAssignmentMetadataValue(assignment_epoch=6), 0, "00000000000600"),
    (j.ConsumerGroupTargetAssignmentMemberKey(group_id="g", member_id="m"), 0, "000000016700016d"),
    (
        j.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                j.ConsumerGroupTargetAssignmentMemberValue.TopicPartition(topic_id=_ID, partitions=[0, 5])
            ]
        ),
        0,
        "000002000000000000000100000000000000020300000000000000050000",
    ),
    (j.ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m"), 0, "000000016700016d"),
    (
        j.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=3,
            previous_member_epoch=2,
            state=1,
            assigned_partitions=[_parts(1)],
            partitions_pending_revocation=[_parts(2)],
        ),
        0,
        (
            "000000000003000000020102000000000000000100000000000000020200000001000200000000000000010000000000"
            "00000202000000020000"
        ),
    ),
    (j.ConsumerGroupRegularExpressionKey(group_id="g", regular_expression="a.*"), 0, "00000001670003612e2a"),
    (
        j.ConsumerGroupRegularExpressionValue(topics=["a1"], version=4, timestamp=1000),
        0,
        "000002036131000000000000000400000000000003e800",
    ),
    (j.TransactionLogKey(transactional_id="x"), 0, "0000000178"),
    (
        _transaction(0),
        0,
        "0000000000000000000800020000ea600100000001000174000000020000000000000001000000000000000b000000000000000a",
    ),
    (
        _transaction(1),
        1,
        (
            "0001000000000000000800020000ea600102027403000000000000000100000000000000000b000000000000000a0300"
            "0800000000000000070108000000000000000902020002"
        ),
    ),
]


@pytest.mark.parametrize(("record", "version", "expected"), KAFKA, ids=lambda case: type(case).__name__)
def test_same_bytes_as_kafka(record: Message, version: int, expected: str) -> None:
    raw = bytes.fromhex(expected)
    assert version.to_bytes(2, "big") + record.encode(version) == raw
    assert type(record).decode(raw[2:], version) == record


def test_keys_start_with_their_kind() -> None:
    kinds = {0, 1, 2, 3, 4, 5, 6, 7, 8, 16}
    assert set(j.KEYS) == kinds
    for kind, cls in j.KEYS.items():
        key = cls()
        raw = j.encode_key(key)
        assert raw[:2] == kind.to_bytes(2, "big")
        assert j.decode_key(raw) == key
        value = j.VALUES[cls]()
        newest = value.MAX_VERSION
        assert j.decode_value(cls, j.encode_value(value, newest)) == value


def test_unknown_kinds_are_skipped_and_damage_is_not() -> None:
    assert j.decode_key((10_000).to_bytes(2, "big") + b"anything") is None
    for damaged in (b"", b"\0", b"\0\1\0\5g"):
        with pytest.raises(WireError):
            j.decode_key(damaged)
    with pytest.raises(WireError, match="version 9"):
        j.decode_value(j.OffsetCommitKey, b"\0\x09" + bytes(30))
