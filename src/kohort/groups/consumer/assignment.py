"""Target assignments and regular expressions: background tasks whose results return as events.

Each group has at most one computation under way. A result for an older epoch is progress and is accepted; then the
newest epoch is computed. Otherwise a group would never get a target while members keep joining.

Members are heard, replaced and removed here too, whatever their protocol, because each change needs another target.

Suspected members of a consumer group: the group does not wait for them.

A member that is overdue may be dead, which only its session timeout shows. Until then it keeps its partitions. But a
target that revokes some of them or adds others would leave other members waiting and partitions unread. So a target is
computed without the members that are silent at that moment. They keep their partitions, and the others share the rest.
If a member falls silent before it has moved, the group gets a new target. When the member is heard again or evicted,
the next target is balanced again.

`failure_detector` decides which members are silent, by `DETECTOR_SETTINGS`. A static member is also silent while it
has left temporarily.

This works only with the assignor `uniform`. The assignor `range` keeps partitions of the same number together, which
needs every member.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import count, repeat
from typing import ClassVar

from msgspec.structs import replace

from kohort.assignors import MemberSubscription, server_assignor
from kohort.errors import ErrorCode
from kohort.groups.admission import Refusal
from kohort.groups.consumer.members import ConsumerReconciliation, MemberSoftState
from kohort.groups.effects import Cause, ComputeAssignment, JoinGroupReply, Level, RebalanceReason, ResolveRegexes
from kohort.groups.events import AssignmentComputed, ConsumerGroupHeartbeat, RegexesResolved, Topic
from kohort.groups.failure_detector import DetectorSettings
from kohort.groups.records import (
    EpochBumped,
    MemberSaved,
    RecordKind,
    RegexResolved,
    TargetAssigned,
    TargetEpochSet,
    Tombstone,
    TopicPartitions,
)
from kohort.groups.step import Step
from kohort.groups.timers import Deadline, Timer
from kohort.groups.topics import (
    NOTHING,
    ImageChange,
    TopicIdPartitions,
    assignable_topic,
    metadata_hash,
    pack_partitions,
    unpack_partitions,
)
from kohort.ids import TopicId, TopicPartition, topic_partition


class ConsumerMemberChanges(ConsumerReconciliation):
    """Members of a consumer group: their signs of life, replacement and removal, and refusals of their requests."""

    def log_fenced(self, step: Step, event: ConsumerGroupHeartbeat, refusal: Refusal) -> None:
        """Log that a member was fenced by its epoch, once until it is heard again."""
        presence = self.presences.get(event.member_id)
        if presence is None or presence.fenced or refusal.error is not ErrorCode.FENCED_MEMBER_EPOCH:
            return
        presence.fenced = True
        current, seen = self.current_assignment(event.member_id), self.member_last_seen_text(step, event.member_id)
        step.log(
            event.group_id,
            f"member {event.member_id} fenced: it sent epoch {event.member_epoch}, its epoch is "
            f"{current.member_epoch}, the previous one was {current.previous_epoch} ({seen})",
        )

    def member_last_seen_text(self, step: Step, member_id: str) -> str:
        """Describe for the log who a member is, when it was last heard, and whether its connection ended."""
        member = self.members[member_id]
        return self.presences[member_id].last_seen_text(step, member.client_id, member.client_host)

    def on_member_heard(self, step: Step, member_id: str, connection: int) -> MemberSoftState:
        """Record a request of a member: bind it to its connection and restart its session."""
        presence = self.soft_state(member_id)
        if presence.connection != connection:
            presence.bind_connection(step, connection)
        presence.gone_ms = None
        self.restart_session(step, presence, member_id)
        return presence

    def restart_session(self, step: Step, presence: MemberSoftState, member_id: str) -> None:
        """Restart a member's session after a request on any connection; a grace period ends."""
        presence.end_grace(step, self.session_timeout_ms(step, member_id))

    def restart_connected_session(self, step: Step, presence: MemberSoftState, member_id: str) -> None:
        """Restart a member's session, unless its connection has ended: its grace period goes on.

        Called when a request has waited for other members, and when a classic member is converted.
        """
        presence.restart_session_if_connected(step, self.session_timeout_ms(step, member_id))

    def leave_temporarily(self, step: Step, member_id: str) -> None:
        """Write that a static member has left for a while: it keeps its partitions for the rest of its session.

        Its waiting requests are refused: a later answer would move the member on, back into the group.
        """
        presence = self.soft_state(member_id)
        presence.stop_rebalance_timers()
        gone = Refusal(ErrorCode.FENCED_MEMBER_EPOCH, f"Member {member_id} has left the group for a while.")
        self.refuse_waiting_requests(step, presence, gone)
        step.emit(self.current_assignment(member_id).as_temporarily_left().to_record(self.group_id, member_id))

    def on_member_protocol_changed(self, step: Step, presence: MemberSoftState, member_id: str) -> None:
        """Refuse a member's waiting requests and stop its timers: it changed between classic and consumer protocol."""
        presence.stop_rebalance_timers()
        elsewhere = Refusal(ErrorCode.UNKNOWN_MEMBER_ID, f"Member {member_id} speaks another protocol.")
        self.refuse_waiting_requests(step, presence, elsewhere)

    def rejoin_member(self, step: Step, member_id: str) -> None:
        """Let a member that had left temporarily take its place again."""
        current = self.current_assignment(member_id)
        if current.has_left_temporarily:
            step.emit(current.without_epoch().to_record(self.group_id, member_id))

    def replace_member(self, step: Step, old_id: str, new_id: str) -> None:
        """Write the records by which a static member continues under a new id, with its old partitions."""
        old, target = self.members[old_id], self.targets.get(old_id)
        before = self.current_assignment(old_id)
        if old_id in self.excluded:
            self.excluded[new_id] = None
        self.forget_removed_member(step, old_id, ErrorCode.FENCED_INSTANCE_ID)
        self.remove_member(step, old_id)
        step.emit(replace(old, member_id=new_id))
        if target is not None:
            step.emit(TargetAssigned(self.group_id, new_id, pack_partitions(target)))
        step.emit(before.without_epoch().to_record(self.group_id, new_id))

    def remove_member(self, step: Step, member_id: str) -> None:
        """Write the tombstones that remove a member from the group."""
        self.forget_removed_member(step, member_id)
        self.excluded.pop(member_id, None)
        if member_id in self.current:
            self.record_partition_downtime(step, member_id, self.current[member_id].assigned, frozenset())
            step.emit(Tombstone((RecordKind.CURRENT, self.group_id, member_id)))
        if member_id in self.targets:
            step.emit(Tombstone((RecordKind.TARGET, self.group_id, member_id)))
        step.emit(Tombstone((RecordKind.MEMBER, self.group_id, member_id)))

    def forget_removed_member(self, step: Step, member_id: str, error: ErrorCode = ErrorCode.UNKNOWN_MEMBER_ID) -> None:
        """Forget a member that was removed or replaced: stop its timers, and refuse its waiting requests."""
        presence = self.presences.pop(member_id, None)
        if presence is not None:
            presence.cancel_timers()
            presence.unbind_connection(step)
            self.refuse_waiting_requests(step, presence, Refusal(error, f"Member {member_id} was removed."))

    def refuse_waiting_requests(self, step: Step, presence: MemberSoftState, refusal: Refusal) -> None:
        """Refuse all waiting requests of a member: it was removed or replaced, has left, or sent another JoinGroup."""
        if presence.waiting is not None:
            refusal.refuse_heartbeat(step, presence.waiting)
        self.cancel_long_poll(step, presence, *refusal)
        if presence.joining is not None:
            is_new = refusal.error is ErrorCode.FENCED_MEMBER_EPOCH  # a code that classic clients do not know
            error = ErrorCode.UNKNOWN_MEMBER_ID if is_new else refusal.error
            step.reply(presence.joining.request, JoinGroupReply(error))
        presence.waiting = presence.joining = None


SLACK_MS = 500
"""The tolerated delay of a heartbeat beside half its interval, and the time that a client needs to reconnect."""
DETECTOR_SETTINGS = DetectorSettings(
    any_sign=True, late_percent=50, late_ms=SLACK_MS, reconnect_ms=SLACK_MS, forgives_disconnect=True
)
"""The failure detector's parameters for consumer groups.

A false suspicion moves partitions twice: away from the member and back. So members get time, and every request counts.
Heartbeats of members that closed a connection during a delay are still delayed. The length of the delay was measured
with their client (`client_quirks`) or follows from the interval that the member was told. Without delays some clients
would send several heartbeats a second, because they were told a short interval.
"""
ASSIGNOR = "uniform"


class ConsumerSuspicion(ConsumerMemberChanges):
    """Suspected members of a consumer group, which the next target assignments leave out."""

    detector: ClassVar[DetectorSettings] = DETECTOR_SETTINGS

    def find_member(self, member_id: str) -> MemberSoftState | None:
        """Return a member's soft state; None if the id is unknown."""
        return self.presences.get(member_id)

    def member_session_ms(self, step: Step, member: MemberSoftState) -> int:
        """Return a member's session timeout."""
        return self.session_timeout_ms(step, member.session.subject)

    def default_interval_ms(self, step: Step) -> int:
        """Return the heartbeat interval, in ms, that the coordinator sends to members that have all of their target.

        The failure detector assumes it for a member whose own interval is unknown.
        """
        return self.heartbeat_interval_ms(step)

    def member_suspected_from_ms(self, step: Step, member_id: str) -> int | None:
        """Return when a member is suspected unless it sends a request before.

        None for a member of the classic protocol: a new target does not affect it before it joins again.
        """
        if self.members[member_id].classic_protocols is not None:
            return None
        if self.current_assignment(member_id).has_left_temporarily:
            return step.now.mono_ms
        presence = self.presences.get(member_id)
        return None if presence is None else self.suspected_from_ms(step, presence)

    def is_member_suspected(self, step: Step, member_id: str) -> bool:
        """Return whether a member is suspected now: its heartbeat is overdue, or its connection ended."""
        from_ms = self.member_suspected_from_ms(step, member_id)
        return from_ms is not None and from_ms <= step.now.mono_ms

    def may_exclude_suspected(self, step: Step) -> bool:
        """Return whether suspected members may be left out of a target.

        That needs another `group.notify.at.once` than "off", and the assignor "uniform".
        """
        return step.config.notify_at_once != "off" and self.preferred_assignor(step) == ASSIGNOR

    def exclude_suspected(self, step: Step) -> dict[str, TopicIdPartitions]:
        """Return the suspected members to leave out of the next target, with the partitions that they keep.

        None are left out if all members are suspected.
        """
        self.excluded.clear()
        silent = self.suspected_among(step, self.members) if self.may_exclude_suspected(step) else []
        self.excluded.update(dict.fromkeys(silent))
        current = {member_id: self.current_assignment(member_id) for member_id in silent}
        return {member_id: assignment.assigned | assignment.pending for member_id, assignment in current.items()}

    def suspected_among(self, step: Step, candidates: Iterable[str]) -> list[str]:
        """Return the suspected ones of some members; none if every member of the group is suspected."""
        if all(self.is_member_suspected(step, member_id) for member_id in self.members):
            return []
        return [member_id for member_id in candidates if self.is_member_suspected(step, member_id)]

    def clear_suspicion(self, step: Step, member_id: str) -> bool:
        """Clear the suspicion of a member; return whether the target excluded it, so that a new one is needed."""
        if member_id not in self.excluded:
            return False
        del self.excluded[member_id]
        presence = self.presences.get(member_id)
        if presence is not None:
            presence.clear_suspicion(step)
        return True

    def schedule_suspicion_check(self, step: Step) -> None:
        """Start the timer that fires when the first member that has not reached its target would become suspected."""
        if not self.may_exclude_suspected(step):
            return
        due = [self.member_suspected_from_ms(step, member_id) for member_id in self.members_short_of_target()]
        first_ms = min((due_ms for due_ms in due if due_ms is not None), default=None)
        if first_ms is not None:
            if self.watch is None:
                self.watch = Timer(Deadline.SILENCE, self.group_id)
            step.deadlines.set_timer(self.watch, max(first_ms, step.now.mono_ms + SLACK_MS))

    def members_short_of_target(self) -> list[str]:
        """Return the members that are included in the newest target and have not reached it yet."""
        return [
            member_id
            for member_id in self.members
            if member_id not in self.excluded and not self.is_at_target(member_id)
        ]

    def is_at_target(self, member_id: str) -> bool:
        current = self.current.get(member_id)
        target = self.targets.get(member_id)
        return not target if current is None else not current.pending and current.assigned == (target or frozenset())

    def has_unassigned_partitions(self, step: Step) -> bool:
        """Return whether a partition of a subscribed topic is in no member's target.

        Then the target excluded suspected members, and no other member reads that topic. A coordinator that takes over
        checks this, because no record names the excluded members.
        """
        if not self.may_exclude_suspected(step):
            return False
        given = {pair for member_id in self.members for pair in self.targets.get(member_id, ())}
        topics = (step.image.topics.get(name) for name in self.subscribed())
        return any((topic.id, number) not in given for topic in topics if topic for number in range(topic.partitions))

    def has_uneven_target(self, step: Step) -> bool:
        """Return whether members' partition counts differ by more than one, although all members read the same topics.

        Then the target excluded suspected members. A coordinator that takes over checks this, because no record names
        the excluded members.
        """
        if (
            not self.may_exclude_suspected(step)
            or len({self.topics_of(reader) for reader in self.members.values()}) != 1
        ):
            return False
        shares = [len(self.targets.get(member_id, frozenset())) for member_id in self.members]
        return max(shares) - min(shares) > 1


NAMED_TOPICS = 5
"""The most changed topics that the cause of a rebalance names."""
NO_INDEXES: Mapping[int, int] = {}
"""The assignor's indexes for a topic that the assignor does not see: none."""

Matcher = Callable[[str, Iterable[str]], Iterable[str]]
"""A function from a regular expression and topic names to the names that match."""


def existing_partitions(pairs: TopicIdPartitions, topics: Mapping[str, Topic]) -> TopicIdPartitions:
    """Return those of a member's partitions that exist in these topics."""
    sizes = {topic.id: topic.partitions for topic in topics.values()}
    return frozenset((topic_id, number) for topic_id, number in pairs if number < sizes.get(topic_id, 0))


def compute_target_assignment(work: ComputeAssignment) -> AssignmentComputed:
    """Run the assignor for a `ComputeAssignment`, and return the result; any thread or process may call this.

    The assignor sees only the partitions that no excluded member keeps, renumbered from 0 within each topic.
    """
    kept: dict[TopicId, set[int]] = {}
    for held in work.excluded.values():
        for entry in held:
            kept.setdefault(entry.topic_id, set()).update(entry.partitions)
    left: dict[str, Sequence[int]] = {}
    places: list[TopicPartition] = []  # all in order, so that members claim them in order: far less to sort
    indexes: dict[int, dict[int, int]] = {}  # by the topic id's number, which hashes ten times as fast
    for name in sorted(work.topics):
        topic = work.topics[name]
        taken = kept.get(topic.id, ())
        left[name] = numbers = [number for number in range(topic.partitions) if number not in taken]
        indexes[topic.id.int] = dict(zip(numbers, count(len(places)), strict=False))
        places += map(topic_partition, zip(repeat(name), range(len(numbers)), strict=False))
    members = {
        member_id: MemberSubscription(
            topics=work.subscribed[member_id],
            instance_id=member.instance_id,
            rack=member.rack_id,
            owned=tuple(map(places.__getitem__, _known(work.current[member_id], indexes))),
            generation=work.epoch - 1,
        )
        for member_id, member in work.members.items()
        if member_id not in work.excluded
    }
    infos = {name: assignable_topic(work.topics[name], numbers) for name, numbers in left.items()}
    assigned = server_assignor(work.assignor).assign(members, infos)
    order = {name: rank for rank, name in enumerate(sorted(work.topics, key=lambda name: work.topics[name].id.int))}
    shares = {member_id: _share(assigned.get(member_id, ()), work.topics, left, order) for member_id in members}
    return AssignmentComputed(work.group_id, work.ticket, work.epoch, {**shares, **work.excluded})


def _known(pairs: TopicIdPartitions, indexes: Mapping[int, Mapping[int, int]]) -> list[int]:
    """Return the sorted places of a member's partitions among those that the assignor sees; omit all others."""
    found = [indexes.get(topic_id.int, NO_INDEXES).get(number, -1) for topic_id, number in pairs]
    return sorted([index for index in found if index >= 0])


def _share(
    assigned: Iterable[TopicPartition],
    topics: Mapping[str, Topic],
    left: Mapping[str, Sequence[int]],
    order: Mapping[str, int],
) -> tuple[TopicPartitions, ...]:
    """Return one member's assignment in the form of records: partitions by topic id, ascending.

    `order` ranks the topics by their ids.
    """
    rows: dict[str, list[int]] = {}
    for claim in assigned:
        topic = claim[0]
        rows.setdefault(topic, []).append(left[topic][claim[1]])
    return tuple([TopicPartitions(topics[name].id, tuple(rows[name])) for name in sorted(rows, key=order.__getitem__)])


def resolve_regexes(work: ResolveRegexes, matcher: Matcher) -> RegexesResolved:
    """Match the regular expressions of a `ResolveRegexes` with topic names; `matcher` is the caller's RE2."""
    matches = {regex: tuple(sorted(matcher(regex, work.topics))) for regex in work.regexes}
    return RegexesResolved(work.group_id, work.ticket, work.version, matches)


class ConsumerAssignment(ConsumerSuspicion):
    """The epochs and target assignments of a consumer group: when each is begun, computed and written."""

    def remove_members(self, step: Step, member_ids: Collection[str], cause: Cause) -> None:
        """Remove members of the group; the others get a new epoch or become a classic group again."""
        members = self.members
        *others, last = sorted(member_ids, key=lambda member_id: members[member_id].classic_protocols is None)
        for member_id in others:
            self.remove_member(step, member_id)
        is_of_consumer_protocol = members[last].classic_protocols is None
        if is_of_consumer_protocol and step.convert_to_classic(self.group_id, leaving=last):
            return
        self.remove_member(step, last)
        self.begin_epoch(step, cause)

    def begin_epoch(self, step: Step, cause: Cause) -> None:
        """Begin a new epoch, with the topics as they are now."""
        step.record_rebalance_cause(self.group_id, cause)
        if self.began_ms is None:
            self.began_ms = step.now.mono_ms
        epoch = self.epoch + 1
        step.emit(EpochBumped(self.group_id, epoch, metadata_hash(step.image, self.subscribed())))
        step.log(self.group_id, f"new group epoch {epoch}: {cause.text}", Level.DEBUG)
        if not self.members:
            for regex in list(self.regexes):  # without members nobody keeps them up to date
                step.emit(Tombstone((RecordKind.REGEX, self.group_id, regex)))
            self.computing = -1  # a result for the former members would set the target back
            step.emit(TargetEpochSet(self.group_id, epoch, step.now.wall_ms))
            step.record_group_emptied(self.group_id, epoch)
            self.began_ms, self.still = None, []
            self.stopped.clear()
            return
        self.request_target_assignment(step)

    def member_epoch_cause(self, before: MemberSaved | None, member_id: str) -> Cause:
        """Return why a member that joined or changed needs a new epoch.

        Args:
            before: the member's metadata before; None: it is new.
            member_id: the member.
        """
        now = self.members[member_id]
        if before is None:
            return Cause(RebalanceReason.JOINED, f"member {member_id} joined", member_id)
        if (before.subscribed_topics, before.subscribed_regex) != (now.subscribed_topics, now.subscribed_regex):
            return Cause(
                RebalanceReason.SUBSCRIPTION_CHANGED, f"member {member_id} changed its subscription", member_id
            )
        text = f"member {member_id} prefers the assignor {now.server_assignor}"
        return Cause(RebalanceReason.ASSIGNOR_CHANGED, text, member_id)

    def request_target_assignment(self, step: Step) -> None:
        """Start computing the newest epoch's target if it has none.

        Do nothing while another computation runs, or until all regexes are resolved.
        """
        if self.computing >= 0 or self.resolving >= 0 or self.epoch <= self.target_epoch:
            return
        if self.request_regex_resolution(step):
            return
        self.computing = step.next_task_number()
        subscribed = {member_id: self.topics_of(member) for member_id, member in sorted(self.members.items())}
        names = {name for topics in subscribed.values() for name in topics}
        topics = {name: step.image.topics[name] for name in sorted(names) if name in step.image.topics}
        excluded = self.exclude_suspected(step)
        step.begin_task(
            ComputeAssignment(
                group_id=self.group_id,
                ticket=self.computing,
                epoch=self.epoch,
                assignor=self.preferred_assignor(step),
                members=dict(self.members),
                subscribed=subscribed,
                current={member_id: self.targets.get(member_id, NOTHING) for member_id in subscribed},
                topics=topics,
                excluded={
                    member_id: pack_partitions(existing_partitions(pairs, topics))
                    for member_id, pairs in excluded.items()
                },
            )
        )

    def request_regex_resolution(self, step: Step, *, again: bool = False) -> bool:
        """Start the matching of regexes that are not resolved yet, or of all with `again`.

        Return True if some matching is needed, also if it was under way.
        """
        wanted = {member.subscribed_regex for member in self.members.values() if member.subscribed_regex}
        for regex in [regex for regex in self.regexes if regex not in wanted]:
            step.emit(Tombstone((RecordKind.REGEX, self.group_id, regex)))
        regexes = tuple(regex for regex in sorted(wanted) if again or regex not in self.regexes)
        if not regexes or self.resolving >= 0:
            return bool(regexes)
        if again or not self.regexes:
            self.resolved_ms = step.now.mono_ms
        self.resolving = step.next_task_number()
        version = step.image.version
        step.begin_task(
            ResolveRegexes(self.group_id, self.resolving, version, regexes, tuple(sorted(step.image.topics)))
        )
        return True

    def refresh_regexes(self, step: Step) -> None:
        """Resolve the regular expressions again once the refresh interval is over.

        The rights of the group's clients may have changed, which decide what a pattern selects.
        """
        if self._matched and step.now.mono_ms - self.resolved_ms >= step.config.consumer_regex_refresh_ms:
            self.request_regex_resolution(step, again=True)

    def on_regexes_resolved(self, step: Step, event: RegexesResolved) -> None:
        """Take over resolved regular expressions; begin a new epoch if they match other topics than before.

        The group's topics may be the same all the same, because other members read them too.
        """
        if self.resolving != event.ticket:
            return
        self.resolving = -1
        in_use = {member.subscribed_regex for member in self.members.values()}
        changed: set[str] = set()
        for regex, names in event.topics.items():
            known = self.regexes.get(regex)
            if regex in in_use and (known is None or known.topics != names):
                step.emit(RegexResolved(event.group_id, regex, names, event.version, step.now.wall_ms))
                changed.update(() if known is None else set(known.topics) ^ set(names))
        if event.version < step.image.version:
            self.request_regex_resolution(step, again=True)
        epoch = self.epoch
        self.check_topics(step)
        awaits_target = epoch > self.target_epoch and self.computing < 0  # by the topics as they are now
        if changed and self.epoch == epoch and not awaits_target:
            topics = tuple(sorted(changed)[:NAMED_TOPICS])
            text = f"regular expressions match other topics: {', '.join(topics)}"
            self.begin_epoch(step, Cause(RebalanceReason.TOPICS_CHANGED, text, topics=topics))
        self.request_target_assignment(step)

    def check_topics(self, step: Step, changed: Collection[str] = ()) -> None:
        """Begin a new epoch if the subscribed topics differ from those of the current one.

        Args:
            step: the step.
            changed: the topics that changed, as far as they are known.
        """
        if self.members and metadata_hash(step.image, self.subscribed()) != self.metadata_hash:
            names = sorted(set(changed).intersection(self.subscribed()))[:NAMED_TOPICS]
            text = f"subscribed topics changed{': ' if names else ''}{', '.join(names)}"
            self.begin_epoch(step, Cause(RebalanceReason.TOPICS_CHANGED, text, topics=tuple(names)))

    def on_topics_changed(self, step: Step, change: ImageChange) -> None:
        """Handle a change of topics in a group that reads one of them, or may."""
        if not self.members:
            return
        if change.names_differ and any(member.subscribed_regex for member in self.members.values()):
            self.request_regex_resolution(step, again=True)
        if not change.topics.isdisjoint(self.subscribed()):
            self.check_topics(step, change.topics)

    def accept_target_assignment(self, step: Step, event: AssignmentComputed) -> bool:
        """Write the changed parts of a computed target, then its epoch; False if the result is stale or a failure."""
        if self.computing != event.ticket:
            return False
        self.computing = -1
        if event.failure is not None:
            step.log(event.group_id, f"target for epoch {event.epoch} not computed: {event.failure}", Level.ERROR)
            return False
        later = self.members.keys() - event.assignment.keys()
        if later and (event.epoch == self.epoch or not later.isdisjoint(self.targets)):
            self.request_target_assignment(step)  # a static member was replaced meanwhile and has another id now
            return False
        for member_id in self.members:
            target = event.assignment.get(member_id, ())
            if member_id not in self.targets or self.targets[member_id] != unpack_partitions(target):
                step.emit(TargetAssigned(event.group_id, member_id, target))
        step.emit(TargetEpochSet(event.group_id, event.epoch, step.now.wall_ms))
        return True
