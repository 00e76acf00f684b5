"""A classic group member over a raw connection, one step at a time."""

from __future__ import annotations

from typing import Any

from kohort.consumer_protocol import ConsumerProtocolSubscription, write_subscription
from kohort.errors import ErrorCode
from kohort.wire.groups import (
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    SyncGroupRequest,
)
from kohort.wire.offsets import OffsetCommitRequest, OffsetFetchRequest
from tests.broker.raw import RawClient


def subscription(*topics: str) -> bytes:
    return write_subscription(ConsumerProtocolSubscription(0, topics))


class Member:
    """A group member's own view of its membership."""

    def __init__(
        self, client: RawClient, group: str, *topics: str, session_ms: int = 10_000, protocol: str = "range"
    ) -> None:
        self.client, self.protocol = client, protocol
        self.group = group
        self.id = ""
        self.generation = -1
        self.session_ms = session_ms
        self.metadata = subscription(*topics)

    def send_join(self) -> None:
        protocol = JoinGroupRequest.JoinGroupRequestProtocol(name=self.protocol, metadata=self.metadata)
        self.client.send(
            JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=self.session_ms,
                rebalance_timeout_ms=self.session_ms,
                member_id=self.id,
                protocol_type="consumer",
                protocols=[protocol],
            ),
            7,
        )

    def obtain_id(self) -> None:
        self.send_join()
        answer = self.client.receive()
        assert answer.error_code == ErrorCode.MEMBER_ID_REQUIRED
        self.id = answer.member_id

    def joined(self) -> Any:
        answer = self.client.receive()
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.id = answer.member_id
            self.send_join()
            answer = self.client.receive()
        if answer.error_code == 0:
            self.id, self.generation = answer.member_id, answer.generation_id
        return answer

    def join(self) -> Any:
        self.send_join()
        return self.joined()

    def send_sync(self, assignments: dict[str, bytes]) -> None:
        make = SyncGroupRequest.SyncGroupRequestAssignment
        self.client.send(
            SyncGroupRequest(
                group_id=self.group,
                generation_id=self.generation,
                member_id=self.id,
                assignments=[make(member_id=member, assignment=value) for member, value in assignments.items()],
            ),
            3,
        )

    def sync(self, assignments: dict[str, bytes] | None = None) -> Any:
        self.send_sync(assignments or {})
        return self.client.receive()

    def heartbeat(self) -> int:
        asked = HeartbeatRequest(group_id=self.group, generation_id=self.generation, member_id=self.id)
        return int(self.client.ask(asked).error_code)

    def leave(self) -> int:
        leaving = LeaveGroupRequest.MemberIdentity(member_id=self.id)
        return int(self.client.ask(LeaveGroupRequest(group_id=self.group, members=[leaving])).error_code)

    def commit(self, topic: str, partition: int, offset: int) -> int:
        part = OffsetCommitRequest.OffsetCommitRequestPartition(partition_index=partition, committed_offset=offset)
        asked = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self.generation,
            member_id=self.id,
            topics=[OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=[part])],
        )
        return int(self.client.ask(asked, 9).topics[0].partitions[0].error_code)


def committed(client: RawClient, group: str, topic: str, partition: int = 0) -> int:
    wanted = OffsetFetchRequest.OffsetFetchRequestTopics(name=topic, partition_indexes=[partition])
    asked = OffsetFetchRequest(groups=[OffsetFetchRequest.OffsetFetchRequestGroup(group_id=group, topics=[wanted])])
    answer = client.ask(asked, 9).groups[0]
    assert answer.error_code == 0, ErrorCode.of(answer.error_code)
    return int(answer.topics[0].partitions[0].committed_offset)
