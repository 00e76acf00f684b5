"""A member's event thread and its group, with a consumer whose answers are prepared."""

from __future__ import annotations

from typing import Any, cast
from uuid import UUID

from kohort.client.consumer.consumer import Consumer
from kohort.client.offsets import GroupMetadata
from kohort.ids import TopicPartition
from kohort.region.consuming.event_thread import EventThread
from kohort.region.consuming.member_thread import GroupListener
from kohort.region.consuming.settings import MemberConfig
from kohort.region.consuming.staging import RowStager
from kohort.region.consuming.starts import parse_start_option
from kohort.region.consuming.work_queue import RecordQueue
from kohort.region.member.machine import MemberMachine

T0, T1 = (TopicPartition("t", number) for number in (0, 1))


class GivenAndWanted:
    """A consumer that was given two partitions, and is to give one of them back, both within one poll."""

    def __init__(self) -> None:
        self.held: set[TopicPartition] = set()
        self.back: set[TopicPartition] = set()
        self.listener: GroupListener | None = None

    def poll_in_which_the_group_changes_its_mind(self) -> None:
        assert self.listener is not None
        self.held = {T0, T1}
        self.listener.on_partitions_assigned([T0, T1])
        self.back = {T1}
        self.listener.on_revocation_requested([T1])

    def release(self) -> None:
        self.held -= self.back
        self.back = set()

    def assignment(self) -> set[TopicPartition]:
        return self.held

    def wanted(self) -> set[TopicPartition]:
        return self.back

    def group_metadata(self) -> GroupMetadata:
        return GroupMetadata("g", 1, "m-1", None)

    def topic_ids(self) -> dict[str, UUID]:
        return {"t": UUID(int=1)}

    def pause(self, *_: TopicPartition) -> None: ...

    def wakeup(self) -> None: ...


def test_partitions_assigned_and_revoked_in_one_poll_are_released() -> None:
    consumer = GivenAndWanted()
    machine = MemberMachine("r", "m1", UUID(int=1), "g")
    config = MemberConfig(("t",), None, parse_start_option("committed", "earliest"))
    thread = EventThread(
        machine, cast(Consumer, consumer), RecordQueue(10, 4), cast(RowStager, None), (), cast(Any, None), config
    )
    consumer.listener = GroupListener(thread._hear_group, cast(Consumer, consumer), thread.wake)
    consumer.poll_in_which_the_group_changes_its_mind()
    thread._follow_group()
    assert consumer.held == {T0} and not consumer.back
    assert [part.partition for part in machine.assigned] == [0]
