"""Start offsets of partitions: only the control plane hands them out, each partition to one member at a time.

Source: spec 5.4, 5.5, 5.8, 5.12.
"""

from __future__ import annotations

from typing import Final

from kohort.region.control_plane.events import MessageReceived
from kohort.region.control_plane.state import ControlPlaneState, MemberPhase, PendingStartRequest, RegisteredMember
from kohort.region.control_plane.table import (
    CHECKPOINTING,
    COMMITTING,
    DRAINING,
    FORMING,
    NO_MEMBERS,
    RESETTING,
    RUNNING,
    STOPPED,
    Table,
    ignored,
    row,
)
from kohort.region.messages import StartOffsetsAnswer, StartOffsetsLookedUp, StartOffsetsRequest
from kohort.region.records import Fact, InitialOffset, InitialTopics, Part, to_part
from kohort.region.states import RegionState


class StartOffsets:
    """The part of the control plane that hands out partitions to members, each with its start offset."""

    def __init__(self, plane: ControlPlaneState) -> None:
        self.plane = plane

    def on_start_request(self, event: MessageReceived) -> None:
        """Handle a member's request for the start offsets of partitions that its group has assigned to it."""
        report, member = event.report, self.plane.member_on_connection(event.connection)
        assert isinstance(report, StartOffsetsRequest)
        if member is not None and report.parts:
            self.forget_start_requests(member, report.parts)
            self.plane.start_requests.append(PendingStartRequest(member.name, report.number, report.parts))
            self.hand_out_partitions()

    def forget_start_requests(self, member: RegisteredMember, parts: tuple[Part, ...]) -> None:
        """Remove partitions from a member's requests for start offsets."""
        for asked in self.plane.start_requests:
            if asked.member == member.name:
                asked.parts = tuple(part for part in asked.parts if part not in parts)
                asked.looking -= frozenset(parts)
        self.plane.start_requests = [request for request in self.plane.start_requests if request.parts]

    def hand_out_partitions(self) -> None:
        """Hand out the requested partitions that no other member holds, or looks up the start offset of.

        Only a running region does this. During a checkpoint, a member has to contribute every partition that it was
        given.
        """
        plane = self.plane
        if plane.state is not RegionState.RUNNING:
            return
        for asked in plane.start_requests:
            member = plane.members[asked.member]
            if (
                member.phase is MemberPhase.GOING_BACK
                or member.epoch < 0
                or member.left
                or not plane.has_all_query_members(member)
            ):
                continue
            free = [part for part in asked.parts if part not in asked.looking and self._is_free(member, part)]
            if free:
                self._hand_out(asked, member, free)
        plane.start_requests = [request for request in plane.start_requests if request.parts]

    def _is_free(self, member: RegisteredMember, part: Part) -> bool:
        if any(part in other.looking for other in self.plane.start_requests if other.member != member.name):
            return False
        return self.plane.owner_of(part) in (None, member)

    def _hand_out(self, asked: PendingStartRequest, member: RegisteredMember, free: list[Part]) -> None:
        plane = self.plane
        known = [position for part in free if (position := plane.saved_position(part)) is not None]
        unknown = [part for part in free if plane.saved_position(part) is None]
        added = tuple(part for part in unknown if self._came_later(part))
        first = tuple(part for part in unknown if part not in added)
        asked.looking |= frozenset(unknown)
        asked.parts = tuple(part for part in asked.parts if part not in {to_part(start) for start in known})
        for position in known:
            member.handed[to_part(position)] = position.offset
        plane.send(member, StartOffsetsAnswer(plane.term, asked.number, tuple(known), first, added))

    def _came_later(self, part: Part) -> bool:
        """Return whether a partition counts as created after its group began to read: it begins at its earliest offset.

        That is so if the region has a start offset of another partition of the topic for this group. The first report
        of start offsets has all partitions that the topic had then. It is also so if the group's pattern did not match
        the topic when the group began.
        """
        if any((before.group, before.topic) == (part.group, part.topic) for before in self.plane.initial):
            return True
        return part.group in self.plane.began and part.topic not in self.plane.began[part.group]

    def on_starts_looked_up(self, event: MessageReceived) -> None:
        """Write the start offsets that a member has looked up to the region's metadata topic.

        The report has also the other partitions of these topics, which other members will ask for. The partitions are
        handed out only after the write.
        """
        plane = self.plane
        report, member = event.report, plane.member_on_connection(event.connection)
        assert isinstance(report, StartOffsetsLookedUp)
        asked = next(
            (
                request
                for request in plane.start_requests
                if member is not None and (request.member, request.number) == (member.name, report.number)
            ),
            None,
        )
        if member is None or asked is None:
            return
        topics = {(part.group, part.topic, part.topic_id) for part in asked.looking}
        found = [
            position
            for position in report.found
            if (position.group, position.topic, position.topic_id) in topics and to_part(position) not in plane.begun
        ]
        plane.begun.update(map(to_part, found))
        facts: list[Fact] = [
            InitialOffset(
                plane.region,
                position.group,
                position.topic,
                position.topic_id,
                position.partition,
                position.offset,
                position.leader_epoch,
            )
            for position in found
        ]
        if report.topics and member.group not in plane.began:
            plane.began[member.group] = report.topics
            facts.append(InitialTopics(plane.region, member.group, report.topics))

        def continue_after_save() -> None:
            for position in found:
                plane.initial[to_part(position)] = position
            asked.looking -= {to_part(position) for position in report.found}
            self.hand_out_partitions()

        plane.save_facts(facts, continue_after_save)


TABLE: Final[Table] = {
    StartOffsetsRequest: {
        FORMING: row("answered when the region runs", StartOffsets.on_start_request),
        RUNNING: row("answered for partitions that no other member holds", StartOffsets.on_start_request),
        DRAINING: row("answered after the checkpoint", StartOffsets.on_start_request),
        CHECKPOINTING: row("answered after the checkpoint", StartOffsets.on_start_request),
        COMMITTING: row("answered when the outcome is known", StartOffsets.on_start_request),
        RESETTING: row("answered when all members have reset", StartOffsets.on_start_request),
        STOPPED: ignored(NO_MEMBERS),
    },
    StartOffsetsLookedUp: {
        FORMING: row("saved before it is handed out", StartOffsets.on_starts_looked_up),
        RUNNING: row("saved before it is handed out", StartOffsets.on_starts_looked_up),
        DRAINING: row("saved; handed out after the checkpoint", StartOffsets.on_starts_looked_up),
        CHECKPOINTING: row("saved; handed out after the checkpoint", StartOffsets.on_starts_looked_up),
        COMMITTING: row("saved; handed out when the outcome is known", StartOffsets.on_starts_looked_up),
        RESETTING: ignored("it asks anew when all members have reset"),
        STOPPED: ignored(NO_MEMBERS),
    },
}  # fmt: skip
"""The transitions of a region by the events of its start offsets: an entry for each event in each state."""
