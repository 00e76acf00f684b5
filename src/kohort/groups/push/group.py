"""A push group: registration and the end of members, the answers of consumers, its table, and how it is published.

The chapters below hold the rest, each knowing only those before: `members` (state), `requests` (Ping, Stop, Start),
`rebalance`.

| a registration of | what happens |
|---|---|
| a new id | it becomes a member, and a rebalance follows |
| the id of a member whose connection has ended, or that the journal knows | it continues with its partitions |
| the id of a member whose connection seems open | that one is pinged; if it answers, the registration is refused |

A consumer is evicted when its session times out or the process that it registered from has ended. It may also leave
(LeaveGroup, which kohort's own clients send). The end of a connection alone shows nothing: the consumer may work on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

from kohort.consumer_protocol import (
    CONSUMER_PROTOCOL_TYPE,
    ConsumerProtocolSubscription,
    write_assignment,
    write_subscription,
)
from kohort.errors import ErrorCode
from kohort.groups import admission
from kohort.groups.effects import (
    Cause,
    CoordinatorMeter,
    DescribedGroup,
    DescribedMember,
    Downtime,
    GroupState,
    LeaveGroupReply,
    LeftMember,
    Level,
    RebalanceReason,
    RegisterConsumerReply,
)
from kohort.groups.events import (
    ConnectionLost,
    LeaveGroup,
    LeavingMember,
    OffsetCommit,
    OffsetsFound,
    OwnerNodesDeleted,
    PushAssignmentComputed,
    PushConsumerAnswered,
    PushPosition,
    PushRequestKind,
    RegisterConsumer,
    TopicsChanged,
    TxnOffsetCommit,
)
from kohort.groups.group import Partition
from kohort.groups.push.members import PushMember
from kohort.groups.push.rebalance import PushRebalance
from kohort.groups.push.requests import first_ping_ms, ping_interval_ms
from kohort.groups.records import PushGroupSaved, PushMemberSaved, RecordKind, Tombstone
from kohort.groups.step import Step
from kohort.groups.table import Table, ignored, reaction
from kohort.groups.timers import Deadline
from kohort.groups.topics import TopicIdPartitions, unpack_partitions
from kohort.ids import TopicPartition


def saved_member_of(event: RegisterConsumer) -> PushMemberSaved:
    """Return the `PushMemberSaved` record of a push consumer's registration."""
    return PushMemberSaved(
        group_id=event.group_id,
        member_id=event.member_id,
        client_id=event.client.id,
        client_host=event.client.host,
        topics=tuple(sorted(event.topics.items())),
        regex=event.regex,
        excluding=event.excluding,
        streams=event.streams,
        auto_commit=event.auto_commit,
        from_begin=event.from_begin,
        session_timeout_ms=event.session_timeout_ms,
    )


class PushRegistry(PushRebalance):
    """The members of a push group as they join, return, leave, and are evicted."""

    def register(self, step: Step, event: RegisterConsumer) -> None:
        """Process a RegisterConsumer that passed the checks of admission: a new member, a return, or a conflict."""
        member = self.present.get(event.member_id)
        if member is None:
            self.add_member(step, event)
        elif member.is_gone:
            self.rejoin_member(step, member, event)
        elif member.claim is not None:
            step.reply(event.request, RegisterConsumerReply(ErrorCode.FENCED_INSTANCE_ID))
        else:
            member.claim = event
            step.remember_connection(event.connection, event.group_id, event.member_id)
            if member.asked is None:
                self.send_next_request(step, event.member_id)

    def add_member(self, step: Step, event: RegisterConsumer) -> None:
        """Add a consumer that registered for the first time."""
        error = admission.group_full_error(step.config.group_max_size, len(self.members))
        if error is not ErrorCode.NONE:
            step.reply(event.request, RegisterConsumerReply(error))
            return
        if not self.members:
            step.emit(PushGroupSaved(self.group_id, -1))
        step.emit(saved_member_of(event))
        member = self.present[event.member_id] = PushMember(self.group_id, event.member_id)
        member.stopped = True
        self.bind_connection(step, member, event)
        step.start_timer(member.ping, first_ping_ms(self.members[event.member_id]))
        text = f"member {event.member_id} joined"
        self.request_rebalance(step, Cause(RebalanceReason.JOINED, text, event.member_id))

    def bind_connection(self, step: Step, member: PushMember, event: RegisterConsumer) -> None:
        """Bind a member to the connection that its RegisterConsumer came on, and restart its session."""
        member.bind_connection(step, event.connection)
        member.process = event.client.process
        member.end_grace(step, self.eviction_timeout_ms(step, self.members[event.member_id]))
        step.reply(event.request, RegisterConsumerReply(ErrorCode.NONE))

    def rejoin_member(self, step: Step, member: PushMember, event: RegisterConsumer) -> None:
        """Take back a member that registers again: ping it, then start it, with its old partitions if possible."""
        saved = saved_member_of(event)
        before = self.members[event.member_id]
        if saved != before:
            step.emit(saved)
        member.asked, member.out, member.notified = None, 0, None
        member.stopped = member.ending = False
        member.back = True
        member.refusals = 0
        self.bind_connection(step, member, event)
        partitions = len(self.owned_by(event.member_id))
        step.log(self.group_id, f"member {event.member_id} registered again with {partitions} partitions")
        if (saved.topics, saved.regex, saved.excluding, saved.streams) != (
            before.topics,
            before.regex,
            before.excluding,
            before.streams,
        ):
            text = f"member {event.member_id} reads other topics"
            self.request_rebalance(step, Cause(RebalanceReason.SUBSCRIPTION_CHANGED, text, event.member_id))
        self.send_next_request(step, event.member_id)

    def refuse_conflicting_registration(self, step: Step, member: PushMember) -> None:
        """Refuse a second registration of a member's id with FENCED_INSTANCE_ID, because the member is alive."""
        claim, member.claim = member.claim, None
        if claim is not None:
            if claim.connection != member.connection:
                step.forget_connection(claim.connection, claim.group_id, claim.member_id)
            step.reply(claim.request, RegisterConsumerReply(ErrorCode.FENCED_INSTANCE_ID))

    def replace_unresponsive(self, step: Step, member: PushMember) -> None:
        """Disconnect a member that did not answer, so that a second registration of its id takes its place."""
        self.disconnect_member(
            step, member, f"member {member.session.subject} disconnected: no answer, and its id registered again"
        )

    def disconnect_member(self, step: Step, member: PushMember, why: str) -> None:
        """Close a member's connection; its session continues, so that it can register again."""
        step.log(self.group_id, why, Level.WARNING)
        self.close_connection(step, member, why)
        member.unbind_connection(step)
        self.mark_disconnected(step, member)

    def mark_disconnected(self, step: Step, member: PushMember) -> None:
        """Record that a member has no connection; a registration that waits under its id takes its place."""
        member.gone_ms = step.now.mono_ms
        member.asked, member.out, member.finding = None, 0, -1
        member.ping.cancel()
        claim, member.claim = member.claim, None
        if claim is not None:
            self.rejoin_member(step, member, claim)

    def on_connection_lost(self, step: Step, member_id: str, event: ConnectionLost) -> None:
        """Handle the end of a connection: evict the member if its process has ended, else let its session run."""
        member = self.present.get(member_id)
        if member is None:
            return
        if member.claim is not None and member.claim.connection == event.connection:
            member.claim = None
        elif member.connection == event.connection and not member.is_gone:
            self.mark_disconnected(step, member)
            is_dead = event.ended != "" and event.ended == member.process
            if is_dead and self.present[member_id].is_gone:
                text = f"member {member_id} evicted: its process has ended"
                self.evict_member(step, Cause(RebalanceReason.DISCONNECTED, text, member_id))

    def on_session_end(self, step: Step, member_id: str) -> None:
        """Evict a member that has answered nothing for its whole session; its own lease has ended before that."""
        member = self.present[member_id]
        saved = self.members[member_id]
        seen = member.last_seen_text(step, saved.client_id, saved.client_host)
        text = f"member {member_id} evicted: session timed out ({seen})"
        self.evict_member(step, Cause(RebalanceReason.SESSION_EXPIRED, text, member_id))

    def leave(self, step: Step, event: LeaveGroup) -> None:
        """Remove the members that a LeaveGroup names, by their own wish or an administrator's, and reply."""
        left = tuple(self.remove_member(step, leaving) for leaving in event.members)
        step.reply(event.request, LeaveGroupReply(ErrorCode.NONE, left))

    def remove_member(self, step: Step, leaving: LeavingMember) -> LeftMember:
        """Remove one member that a LeaveGroup names; return its result."""
        if leaving.member_id not in self.members:
            return LeftMember(leaving.member_id, leaving.instance_id, ErrorCode.UNKNOWN_MEMBER_ID)
        text = f"member {leaving.member_id} left (reason: {leaving.reason or 'not given'})"
        self.evict_member(step, Cause(RebalanceReason.LEFT, text, leaving.member_id))
        return LeftMember(leaving.member_id, leaving.instance_id, ErrorCode.NONE)

    def evict_member(self, step: Step, cause: Cause) -> None:
        """Remove a member: free its partitions, end its connection, and rebalance."""
        member_id, why = cause.member_id, cause.text
        step.log(self.group_id, why)
        member = self.present[member_id]
        self.close_connection(step, member, why)
        member.session.cancel()
        member.ping.cancel()
        claim, member.claim = member.claim, None
        del self.present[member_id]
        self.mark_member_started(member_id)
        self.release_partitions(step, member_id)
        step.emit(Tombstone((RecordKind.PUSH_MEMBER, self.group_id, member_id)))
        member.unbind_connection(step)
        if not self.members:
            step.emit(PushGroupSaved(self.group_id, step.now.wall_ms))
        self.request_rebalance(step, cause)
        self.continue_attempt(step)
        if claim is not None:
            step.forget_connection(claim.connection, claim.group_id, claim.member_id)
            self.register(step, claim)

    def build_soft_state(self, step: Step) -> None:
        """Wait for each member for one session after a replay, and rebalance."""
        self.loaded = True
        for member_id, saved in self.members.items():
            member = self.present[member_id] = PushMember(self.group_id, member_id)
            member.end_grace(step, self.eviction_timeout_ms(step, saved))
            member.gone_ms = step.now.mono_ms
        if self.members:
            self.request_rebalance(step, Cause(RebalanceReason.COORDINATOR, "the shard was loaded"))


LOGGED_PARTITIONS = 5
"""The number of partitions named in a log line."""


class PushAnswers(PushRegistry):
    """The handling of push consumers' answers, of background results, and of timeouts while they are missing."""

    def on_consumer_answered(self, step: Step, event: PushConsumerAnswered) -> None:
        """Process the answer to a consumer's oldest request; ignore one from a former connection."""
        member = self.present.get(event.member_id)
        if member is None or member.connection != event.connection or not member.out:
            return
        member.out -= 1
        saved = self.members[event.member_id]
        member.end_grace(step, self.eviction_timeout_ms(step, saved))
        if event.asked is PushRequestKind.PING and saved.auto_commit:
            self.commit_positions(step, event)
        if member.out:
            return  # a Ping was repeated: the next request waits for all its answers
        member.asked = None
        step.start_timer(
            member.ping, ping_interval_ms(saved) if event.asked is PushRequestKind.PING else first_ping_ms(saved)
        )
        if event.error is not ErrorCode.NONE:
            self.on_request_refused(step, member, event)
        elif event.asked is PushRequestKind.PING:
            self.on_ping_answered(step, member)
        elif event.asked is PushRequestKind.STOP:
            member.refusals, member.stopped, member.ending, member.notified = 0, True, True, None
            member.still_ms = step.now.mono_ms if self.owned_by(event.member_id) else None
        else:
            self.on_start_answered(step, member)
        if self.present.get(event.member_id) is member:
            self.send_next_request(step, event.member_id)

    def commit_positions(self, step: Step, event: PushConsumerAnswered) -> None:
        """Auto commit the changed positions of partitions that the coordinator assigned to the consumer."""
        topics, offsets = step.image.topics, step.offsets_of(self.group_id)
        for position in event.positions:
            topic = topics.get(position.topic)
            if topic is None or position.offset < 0:
                continue
            if self.holders.get((topic.id, position.partition)) != event.member_id:
                continue
            known = offsets.get((position.topic, position.partition))
            if known is None or known.offset != position.offset:
                self.commit_position(step, position)

    def on_request_refused(self, step: Step, member: PushMember, event: PushConsumerAnswered) -> None:
        """Handle a consumer's error response to a Stop or a Start: send it a Stop again.

        A consumer that repeats the error is disconnected, and its session timeout evicts it.
        """
        member.refusals += 1
        member.stopped = False
        answer = f"answered {event.asked.name.capitalize()} with {event.error.name}"
        if member.refusals < step.config.push_failed_requests_max:
            step.log(self.group_id, f"member {event.member_id} {answer}; stopping it again", Level.WARNING)
            if event.member_id not in self.moving:
                self.restart_member(step, event.member_id)
        else:
            text = f"member {event.member_id} disconnected: {answer}, {member.refusals} times in a row"
            self.disconnect_member(step, member, text)

    def on_ping_answered(self, step: Step, member: PushMember) -> None:
        """Handle a Ping's answer: refuse a conflicting registration, and free the partitions of a stopped member."""
        member_id = member.session.subject
        member.back = False
        if member.proves:
            self.refuse_conflicting_registration(step, member)
        if member.ending:
            member.ending = False
            self.release_partitions(step, member_id)

    def on_start_answered(self, step: Step, member: PushMember) -> None:
        """Record that a member reads the partitions of its Start."""
        member_id = member.session.subject
        member.refusals, member.stopped = 0, False
        owned = member.notified = self.owned_by(member_id)
        if member.still_ms is not None:
            self.still.append(Downtime(member_id, step.now.mono_ms - member.still_ms))
            member.still_ms = None
        want = self.moving.get(member_id)
        if want is not None and frozenset(self.pairs_by_topic_name(step, want).values()) == owned:
            self.mark_member_started(member_id)
            self.complete_if_all_started(step)

    def on_ping_due(self, step: Step, member_id: str) -> None:
        """Send the next Ping to a member without an unanswered request, or repeat a Ping whose answer is late.

        Stop and Start are never repeated. A second registration that waits replaces a member whose answer is late.
        """
        member = self.present.get(member_id)
        if member is None or member.is_gone:
            return
        saved = self.members[member_id]
        if member.asked is None:
            self.ping_member(step, member)
        elif member.claim is not None:
            self.replace_unresponsive(step, member)
        elif member.asked is PushRequestKind.PING and member.out <= step.config.push_failed_requests_max:
            self.ping_member(step, member, member.out)
        else:
            step.start_timer(member.ping, ping_interval_ms(saved))

    def on_offsets_found(self, step: Step, event: OffsetsFound) -> None:
        """Commit the start offsets that were looked up for partitions without a committed offset.

        Every later owner of these partitions then starts from the same offsets.
        """
        member = self.present.get(event.member_id)
        if member is None or member.finding != event.ticket:
            return
        member.finding = -1
        offsets = step.offsets_of(self.group_id)
        for topic, partition, offset in event.positions:
            if (topic, partition) not in offsets and topic in step.image.topics:
                self.commit_position(step, PushPosition(topic, partition, offset))
        if event.failure is not None:
            step.log(self.group_id, f"member {event.member_id} cannot be started: {event.failure}", Level.WARNING)
            self.start_rebalance_backoff(step)
        else:
            self.send_next_request(step, event.member_id)

    def on_partitions_divided(self, step: Step, event: PushAssignmentComputed) -> None:
        """Take over a computed assignment, and select the members that have to move."""
        if self.dividing != event.ticket:
            return
        self.dividing = -1
        if event.failure is not None:
            step.log(self.group_id, f"assignment not computed: {event.failure}", Level.ERROR)
            self.retry_rebalance(step)
            return
        self.matched = event.matched
        targets = {
            member_id: unpack_partitions(given)
            for member_id, given in event.assignment.items()
            if member_id in self.members
        }
        if step.config.push_rebalance == "all" and self.needs_rebalance(targets):
            self.set_members_to_start(targets)
        else:
            self.set_members_to_start(
                {member_id: want for member_id, want in targets.items() if self.needs_restart(member_id, want)}
            )
        self.unregistered = {}
        step.start_timer(self.attempts, self.attempt_timeout_ms())
        for member_id in list(self.moving):
            self.send_next_request(step, member_id)
        self.complete_if_all_started(step)

    def on_attempt_timeout(self, step: Step, _subject: str) -> None:
        """Retry the rebalance after a backoff, because an attempt has timed out.

        After the last retry the rebalance fails: silent members are disconnected, and attempts start again after the
        backoff.
        """
        if self.rebalancing:
            late = ", ".join(sorted(self.moving)[:5])
            step.log(self.group_id, f"rebalance attempt {self.attempt + 1} timed out; waiting for {late}")
            self.retry_rebalance(step)

    def retry_rebalance(self, step: Step) -> None:
        """Schedule another attempt after the backoff; after the last retry, first let the rebalance fail."""
        self.attempts.cancel()
        self.attempt += 1
        if self.attempt > step.config.push_rebalance_retries:
            self.fail_rebalance(step)
        step.start_timer(self.backoff, step.config.push_rebalance_backoff_ms)

    def fail_rebalance(self, step: Step) -> None:
        """Fail the rebalance: disconnect members that did not answer, which are evicted when their sessions end."""
        silent = [
            member_id
            for member_id in self.moving
            if not self.present[member_id].is_gone
            and self.present[member_id].asked in (PushRequestKind.STOP, PushRequestKind.START)
        ]
        step.log(
            self.group_id,
            f"rebalance failed after {self.attempt} attempts (ConsumerRebalanceFailedException); "
            f"no answer from {', '.join(silent[:10]) or 'nobody'}",
            Level.ERROR,
        )
        step.count_meter(CoordinatorMeter.PUSH_FAILED)
        self.attempt = 0
        for member_id in silent:
            text = f"member {member_id} disconnected: no answer during a rebalance"
            self.disconnect_member(step, self.present[member_id], text)

    def on_backoff_end(self, step: Step, _subject: str) -> None:
        """Begin another attempt; members that wait for offsets request them again."""
        if self.members:
            if self.began_ms is None:
                self.began_ms = step.now.mono_ms
            self.request_assignment(step)
            for member_id in self.members:
                self.send_next_request(step, member_id)

    def on_owner_nodes_deleted(self, step: Step, event: OwnerNodesDeleted) -> None:
        """Rebalance after owner nodes were deleted in ZooKeeper: stop and start the owners of those partitions."""
        missing = {
            (topic.id, part.partition) for part in event.partitions if (topic := step.image.topics.get(part.topic))
        }
        found = [member_id for member_id, pairs in self.owned.items() if not pairs.isdisjoint(missing)]
        if found:
            self.unregistered.update(dict.fromkeys(found))
            names = ", ".join(f"{part.topic}-{part.partition}" for part in event.partitions[:LOGGED_PARTITIONS])
            step.log(
                event.group_id, f"owners of {len(event.partitions)} partitions were deleted: {names}", Level.WARNING
            )
            text = "the owners of partitions were deleted"
            self.request_rebalance(step, Cause(RebalanceReason.COORDINATOR, text))


EMPTY, PREPARING, STABLE = GroupState.EMPTY, GroupState.PREPARING_REBALANCE, GroupState.STABLE

PUSH_PROTOCOL: Final = "push"
"""The chosen protocol that DescribeGroups shows for a push group."""

_NO_MEMBERS = ignored("the group has no members")
_NO_REBALANCE = ignored("no rebalance is under way")

TABLE: Table = {
    RegisterConsumer: {
        EMPTY: reaction("a first member: a rebalance begins", PushRegistry.register, PREPARING),
        PREPARING: reaction("a new member takes part in the next rebalance", PushRegistry.register),
        STABLE: reaction("a new member, or one that reads other topics: a rebalance", PushRegistry.register, PREPARING),
    },
    LeaveGroup: {
        EMPTY: reaction("refused: the group has no members", PushRegistry.leave),
        PREPARING: reaction("the last member leaves, or the last one awaited", PushRegistry.leave, EMPTY, STABLE),
        STABLE: reaction("a member leaves or is removed: the others rebalance", PushRegistry.leave, PREPARING, EMPTY),
    },
    ConnectionLost: {
        EMPTY: _NO_MEMBERS,
        PREPARING: reaction("the member's process has ended: it was the last one, or the last one awaited",
                            PushRegistry.on_connection_lost, EMPTY, STABLE),
        STABLE: reaction("the member's process has ended: the others rebalance; a replacement may read other topics",
                         PushRegistry.on_connection_lost, PREPARING, EMPTY),
    },
    Deadline.SESSION: {
        EMPTY: _NO_MEMBERS,
        PREPARING: reaction("a session timed out: of the last member, or of the last one awaited",
                            PushRegistry.on_session_end, EMPTY, STABLE),
        STABLE: reaction("a session timed out: the others rebalance", PushRegistry.on_session_end, PREPARING, EMPTY),
    },
    Deadline.PING: {
        EMPTY: _NO_MEMBERS,
        PREPARING: reaction("the member is pinged, or replaced by a conflicting registration", PushAnswers.on_ping_due),
        STABLE: reaction("the member is pinged; a conflicting registration that replaces it may read other topics",
                         PushAnswers.on_ping_due, PREPARING),
    },
    PushConsumerAnswered: {
        EMPTY: _NO_MEMBERS,
        PREPARING: reaction("the last awaited member has been started", PushAnswers.on_consumer_answered, STABLE),
        STABLE: reaction("a member that may read other partitions is stopped",
                         PushAnswers.on_consumer_answered, PREPARING),
    },
    PushAssignmentComputed: {
        EMPTY: _NO_REBALANCE,
        PREPARING: reaction("members are moved; without any to move the rebalance is complete",
                            PushAnswers.on_partitions_divided, STABLE),
        STABLE: _NO_REBALANCE,
    },
    OffsetsFound: {
        EMPTY: _NO_MEMBERS,
        PREPARING: reaction("the positions are written, and the member is started", PushAnswers.on_offsets_found),
        STABLE: reaction("the positions are written, and the member is started", PushAnswers.on_offsets_found),
    },
    Deadline.ATTEMPT: {
        EMPTY: _NO_REBALANCE,
        PREPARING: reaction("the rebalance is retried after a pause, or fails", PushAnswers.on_attempt_timeout),
        STABLE: _NO_REBALANCE,
    },
    Deadline.BACKOFF: {
        EMPTY: _NO_REBALANCE,
        PREPARING: reaction("the next attempt begins", PushAnswers.on_backoff_end),
        STABLE: reaction("the rebalance begins that waited for the pause", PushAnswers.on_backoff_end, PREPARING),
    },
    TopicsChanged: {
        EMPTY: _NO_MEMBERS,
        PREPARING: reaction("another rebalance follows", PushRebalance.on_topics_changed),
        STABLE: reaction("topics changed that members read, or may", PushRebalance.on_topics_changed, PREPARING),
    },
    OwnerNodesDeleted: {
        EMPTY: _NO_MEMBERS,
        PREPARING: reaction("another rebalance follows", PushAnswers.on_owner_nodes_deleted),
        STABLE: reaction("the owners that ZooKeeper shows were deleted", PushAnswers.on_owner_nodes_deleted, PREPARING),
    },
}  # fmt: skip
"""The transitions of a push group: an entry for each event in each state."""


class PushGroup(PushAnswers):
    """A group under the push protocol."""

    name: ClassVar[str] = PUSH_PROTOCOL
    listed_as: ClassVar[str] = "classic"
    table: ClassVar[Table] = TABLE

    def listed_protocol_type(self) -> str:
        """Return "consumer", the protocol type for ListGroups."""
        return CONSUMER_PROTOCOL_TYPE

    def partition_owners(self, step: Step) -> Mapping[TopicPartition, str]:
        """Return the owner of each partition as `<member id>-<stream>`."""
        found: dict[TopicPartition, str] = {}
        for member_id, pairs in self.owned.items():
            found.update(self.partition_stream_owners(step, self.members[member_id], pairs))
        return found

    def partition_stream_owners(
        self, step: Step, saved: PushMemberSaved, pairs: TopicIdPartitions
    ) -> Mapping[TopicPartition, str]:
        """Return the owner of each of a consumer's partitions as `<member id>-<stream>`; the streams take turns."""
        of_topic = dict(saved.topics)
        dealt: dict[str, int] = {}
        found: dict[TopicPartition, str] = {}
        for part in self.pairs_by_topic_name(step, pairs):
            stream = dealt.get(part.topic, 0)
            dealt[part.topic] = stream + 1
            count = of_topic.get(part.topic, saved.streams if saved.regex is not None else 1)
            found[part] = f"{saved.member_id}-{stream % max(1, count)}"
        return found

    # -- Permission to commit manually in a push group
    #
    # A member may commit its own partitions until its Stop is answered. For other partitions a member may repeat the
    # committed position with its own metadata. For a partition without an owner it may also commit a first offset.
    # Neither moves another member.

    def commit_error(self, step: Step, event: OffsetCommit) -> ErrorCode:
        """Return the error that refuses a commit, else NONE.

        Members may commit, whatever the generation. An empty group also accepts a commit without a generation.
        """
        if not self.members and event.generation < 0:
            return ErrorCode.NONE
        return ErrorCode.NONE if event.member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def refused_offsets(self, step: Step, event: OffsetCommit) -> Mapping[Partition, ErrorCode]:
        """Return ILLEGAL_GENERATION for partitions whose offset a member's commit may not change.

        Those are partitions that do not exist, and others' or revoked ones if the commit would change their offset. A
        first offset of a partition without an owner is accepted.
        """
        member = self.present.get(event.member_id)
        if member is None:
            return {}
        topics, holders = step.image.topics, self.holders
        known = step.offsets_of(self.group_id)
        refused = {}
        for offset in event.offsets:
            part = (offset.topic, offset.partition)
            topic, at = topics.get(offset.topic), known.get(part)
            if topic is None or offset.partition >= topic.partitions:
                refused[part] = ErrorCode.ILLEGAL_GENERATION
                continue
            holder = holders.get((topic.id, offset.partition))
            moves = holder is not None if at is None else at.offset != offset.offset
            if moves and (member.ending or holder != event.member_id):
                refused[part] = ErrorCode.ILLEGAL_GENERATION
        return refused

    def transactional_commit_error(self, step: Step, event: TxnOffsetCommit) -> ErrorCode:
        """Refuse transactional commits in a group with members, which have no epoch to check the transaction by."""
        return ErrorCode.NONE if not self.members else ErrorCode.ILLEGAL_GENERATION

    def describe(self, step: Step) -> DescribedGroup:
        """Describe a push group like a classic one, with assignments that every tool can read."""
        members = tuple(
            DescribedMember(
                member_id=member_id,
                instance_id=None,
                client_id=saved.client_id,
                client_host=saved.client_host,
                metadata=write_subscription(ConsumerProtocolSubscription(1, self.known_topics(saved))),
                assignment=write_assignment(1, self.pairs_by_topic_name(step, self.owned_by(member_id))),
            )
            for member_id, saved in self.members.items()
        )
        protocol = PUSH_PROTOCOL if members else ""
        return DescribedGroup(self.group_id, self.group_state(), CONSUMER_PROTOCOL_TYPE, protocol, members)

    def known_topics(self, saved: PushMemberSaved) -> tuple[str, ...]:
        """Return the topics that a member reads, as far as they are known."""
        if saved.regex is None:
            return tuple(topic for topic, _ in saved.topics)
        return tuple(sorted(self.matched.get((saved.regex, saved.excluding), ())))
