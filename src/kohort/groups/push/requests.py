"""Requests to push consumers, one at a time: Ping, Stop, Start. Source: spec 4.5, 4.6.

Answers have no number. So only one request is unanswered at a time, and only a Ping is ever repeated. A request that is
not a repetition tells the consumer that all its answers have arrived. The consumer's lease counts from the last of
them, so every such request permits it to go on.

If nothing is unanswered, `send_next_request` chooses the next request:

| the consumer | request |
|---|---|
| has a conflicting registration of its id | Ping: an answer refuses the registration |
| has answered a Stop | Ping, for its last positions; then it owns nothing |
| has registered again | Ping, for its positions |
| has to be started with other partitions, and may still fetch | Stop |
| has to be started, has stopped, and nobody else owns the partitions | Start, once their offsets are known |
| has registered again, and nothing else is due | Start with its own partitions |
| else | Ping, a third of its session after its last answer |
"""

from __future__ import annotations

import zlib

from kohort.groups.effects import (
    CoordinatorMeter,
    DisconnectConsumer,
    FindOffsets,
    PingConsumer,
    StartConsumer,
    StopConsumer,
)
from kohort.groups.events import PushPosition, PushRequestKind
from kohort.groups.push.members import PushMember, PushMembers
from kohort.groups.records import OffsetCommitted, PushMemberSaved, PushOwned, RecordKind, Tombstone
from kohort.groups.step import Step
from kohort.groups.topics import TopicIdPartition, TopicIdPartitions, pack_partitions
from kohort.ids import NO_POSITION, TopicPartition

PARTS = 3
"""How many requests a consumer gets in the time of one session."""
SPREAD = 1_000
"""The number of moments, within half an interval, over which the Pings after a Start are spread by member id."""


def ping_interval_ms(saved: PushMemberSaved) -> int:
    """Return the time, in ms, from a consumer's answer to its next Ping; an answer may take as long."""
    return max(1, saved.session_timeout_ms // PARTS)


def first_ping_ms(saved: PushMemberSaved) -> int:
    """Return the delay of the first Ping after a Start, which many other members may have got at the same time."""
    interval = ping_interval_ms(saved)
    return interval - interval * (zlib.crc32(saved.member_id.encode()) % SPREAD) // (2 * SPREAD)


class PushRequests(PushMembers):
    """The requests to the members of a push group (Ping, Stop, Start), one at a time for each member."""

    def eviction_timeout_ms(self, step: Step, saved: PushMemberSaved) -> int:
        """Return how long a member may be silent before it is evicted.

        This is its session timeout, or the time of `push_failed_requests_max` request intervals if that is longer.
        """
        return max(saved.session_timeout_ms, step.config.push_failed_requests_max * ping_interval_ms(saved))

    # -- requests

    def send_next_request(self, step: Step, member_id: str) -> None:
        """Send the next request if nothing is unanswered and the consumer is connected."""
        member = self.present[member_id]
        if member.asked is not None or member.is_gone:
            return
        if member.claim is not None or member.ending or member.back:
            self.ping_member(step, member)
            return
        want = self.moving.get(member_id)
        if want is not None:
            if not member.stopped:
                self.stop_member(step, member)
            elif self.is_free_for(member_id, want):
                self.start_member(step, member, want)
        elif member.notified is None and not member.stopped:
            self.start_member(step, member, self.owned_by(member_id))

    def send_request(
        self,
        step: Step,
        member: PushMember,
        asking: PushRequestKind,
        value: PingConsumer | StopConsumer | StartConsumer,
    ) -> None:
        """Send a request, and set the timer for its answer."""
        member.asked = asking
        member.out += 1
        step.send_push_frame(member.connection, value)
        step.start_timer(member.ping, ping_interval_ms(self.members[member.session.subject]))

    def ping_member(self, step: Step, member: PushMember, retries: int = 0) -> None:
        """Send a Ping, which asks whether a consumer is alive and for its positions."""
        saved = self.members[member.session.subject]
        value = PingConsumer(self.group_id, saved.member_id, saved.auto_commit, retries)
        member.proves = member.claim is not None
        self.send_request(step, member, PushRequestKind.PING, value)

    def stop_member(self, step: Step, member: PushMember) -> None:
        """Send a Stop, after which the consumer reads nothing more."""
        self.send_request(step, member, PushRequestKind.STOP, StopConsumer(self.group_id, member.session.subject))

    def start_member(self, step: Step, member: PushMember, want: TopicIdPartitions) -> None:
        """Send a Start with partitions and positions; the record of ownership is durable before.

        Missing positions are looked up first, unless the consumer finds them itself. A partition that is newer than the
        group's first Start with its topic begins at its start: its end would skip records (KAFKA-20539).
        """
        member_id = member.session.subject
        saved = self.members[member_id]
        named = self.pairs_by_topic_name(step, want)
        offsets = step.offsets_of(self.group_id)
        self.record_first_seen_topics(step, named)
        missing = [part for part in named if part not in offsets]
        if missing and saved.from_begin is not None:
            newer = [part for part in missing if self.is_newer(part, named[part])]
            self.lookup_offsets(step, member, newer or missing, from_begin=bool(newer) or saved.from_begin)
            return
        if self.owned_by(member_id) != frozenset(named.values()):
            step.emit(PushOwned(self.group_id, member_id, pack_partitions(named.values())))
        at = {part: offsets[part].offset if part in offsets else NO_POSITION for part in named}
        positions = tuple(PushPosition(part.topic, part.partition, offset) for part, offset in at.items())
        self.send_request(step, member, PushRequestKind.START, StartConsumer(self.group_id, member_id, positions))

    def record_first_seen_topics(self, step: Step, named: dict[TopicPartition, TopicIdPartition]) -> None:
        """Record id and partition count of topics when the group first starts a member with them, for `is_newer`."""
        for topic in {part.topic for part in named} - self.first_seen.keys():
            found = step.image.topics[topic]
            self.first_seen[topic] = (found.id, found.partitions)

    def is_newer(self, part: TopicPartition, pair: TopicIdPartition) -> bool:
        """Return whether a partition is newer than the group's first Start with its topic.

        It was added since, or the topic was created again.
        """
        topic_id, partitions = self.first_seen[part.topic]
        return part.partition >= partitions or pair[0] != topic_id

    def pairs_by_topic_name(self, step: Step, pairs: TopicIdPartitions) -> dict[TopicPartition, TopicIdPartition]:
        """Return partitions by topic name and number, in that order; omit partitions that no longer exist."""
        names = step.topics_by_id()
        found = {
            TopicPartition(names[topic_id].name, number): (topic_id, number)
            for topic_id, number in pairs
            if topic_id in names and number < names[topic_id].partitions
        }
        return dict(sorted(found.items()))

    def lookup_offsets(
        self, step: Step, member: PushMember, missing: list[TopicPartition], *, from_begin: bool
    ) -> None:
        """Look up the start or end offsets of partitions, unless a look-up is under way."""
        if member.finding >= 0:
            return
        member.finding = step.next_task_number()
        member_id = member.session.subject
        step.begin_task(FindOffsets(self.group_id, member_id, member.finding, tuple(missing), from_begin))

    def commit_position(self, step: Step, position: PushPosition) -> None:
        """Write the committed offset of one partition."""
        topic, partition, offset = position
        step.emit(OffsetCommitted(self.group_id, topic, partition, offset, -1, "", step.now.wall_ms))
        step.count_meter(CoordinatorMeter.OFFSET_COMMITS)

    def release_partitions(self, step: Step, member_id: str) -> None:
        """Free a member's partitions, and advance the members that wait for them."""
        pairs = self.owned_by(member_id)
        if not pairs:
            return
        step.emit(Tombstone((RecordKind.PUSH_OWNED, self.group_id, member_id)))
        for taker in self.members_waiting_for(pairs):
            if taker != member_id and taker in self.present:
                self.send_next_request(step, taker)

    def close_connection(self, step: Step, member: PushMember, why: str) -> None:
        """End a member's connection, if it has one."""
        if not member.is_gone:
            value = DisconnectConsumer(self.group_id, member.session.subject, why)
            step.send_push_frame(member.connection, value)
