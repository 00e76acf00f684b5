"""Target assignments and regular expressions: background tasks whose results return as events.

Each group has at most one computation under way. A result for an older epoch is progress and is accepted; then the
newest epoch is computed. Otherwise a group would never get a target while members keep joining.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from kohort.assignors import MemberSubscription, server_assignor
from kohort.groups.consumer.suspicion import ConsumerSuspicion
from kohort.groups.effects import ComputeAssignment, Level, ResolveRegexes
from kohort.groups.events import AssignmentComputed, RegexesResolved, Topic
from kohort.groups.pairs import NOTHING, Pairs, pack, unpack
from kohort.groups.records import EpochBumped, Kind, RegexResolved, TargetAssigned, TargetEpochSet, Tombstone
from kohort.groups.step import Step
from kohort.groups.topics import ImageChange, metadata_hash, topic_info
from kohort.ids import TopicPartition

Matcher = Callable[[str, Iterable[str]], Iterable[str]]
"""A function from a regular expression and topic names to the names that match."""


def existing(pairs: Pairs, topics: Mapping[str, Topic]) -> Pairs:
    """Return the partitions that exist in these topics."""
    sizes = {topic.id: topic.partitions for topic in topics.values()}
    return frozenset((topic_id, number) for topic_id, number in pairs if number < sizes.get(topic_id, 0))


def compute(work: ComputeAssignment) -> AssignmentComputed:
    """Carry out a `ComputeAssignment`: a pure function for any thread or process.

    The assignor sees the partitions that excluded members leave, with each topic's numbered from 0.
    """
    kept = {
        (entry.topic_id, number) for held in work.excluded.values() for entry in held for number in entry.partitions
    }
    left = {
        name: [number for number in range(topic.partitions) if (topic.id, number) not in kept]
        for name, topic in work.topics.items()
    }
    places = {
        (topic.id, number): TopicPartition(name, place)
        for name, topic in work.topics.items()
        for place, number in enumerate(left[name])
    }
    members = {
        member_id: MemberSubscription(
            topics=work.subscribed[member_id],
            instance_id=member.instance_id,
            rack=member.rack_id,
            owned=tuple(
                place
                for entry in work.current[member_id]
                for number in entry.partitions
                if (place := places.get((entry.topic_id, number))) is not None
            ),
            generation=work.epoch - 1,
        )
        for member_id, member in work.members.items()
        if member_id not in work.excluded
    }
    infos = {name: topic_info(topic, left[name]) for name, topic in work.topics.items()}
    assigned = server_assignor(work.assignor).assign(members, infos)
    shares = {
        member_id: pack((work.topics[topic].id, left[topic][place]) for topic, place in assigned.get(member_id, ()))
        for member_id in members
    }
    return AssignmentComputed(work.group_id, work.ticket, work.epoch, {**shares, **work.excluded})


def resolve(work: ResolveRegexes, matcher: Matcher) -> RegexesResolved:
    """Carry out a `ResolveRegexes` with the caller's RE2."""
    matches = {regex: tuple(sorted(matcher(regex, work.topics))) for regex in work.regexes}
    return RegexesResolved(work.group_id, work.ticket, work.version, matches)


class ConsumerAssignment(ConsumerSuspicion):
    """The epochs of a consumer group, and how each gets its target."""

    def begin_epoch(self, step: Step, reason: str) -> None:
        """Begin a new epoch, with the topics as they are now."""
        if self.began_ms is None:
            self.began_ms = step.now.mono_ms
        epoch = self.epoch + 1
        step.emit(EpochBumped(self.group_id, epoch, metadata_hash(step.image, self.subscribed())))
        step.log(self.group_id, f"epoch {epoch}: {reason}", Level.DEBUG)
        if not self.members:
            for regex in list(self.regexes):  # without members nobody keeps them up to date
                step.emit(Tombstone((Kind.REGEX, self.group_id, regex)))
            self.computing = -1  # a result for the former members would set the target back
            step.emit(TargetEpochSet(self.group_id, epoch, step.now.wall_ms))
            return
        self.request_target(step)

    def request_target(self, step: Step) -> None:
        """Request the target of the newest epoch, unless a computation or its prerequisite is under way."""
        if self.computing >= 0 or self.resolving >= 0 or self.epoch <= self.target_epoch:
            return
        if self.request_resolution(step):
            return
        self.computing = step.ticket()
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
                current={member_id: pack(self.targets.get(member_id, NOTHING)) for member_id in subscribed},
                topics=topics,
                excluded={member_id: pack(existing(pairs, topics)) for member_id, pairs in excluded.items()},
            )
        )

    def request_resolution(self, step: Step, *, again: bool = False) -> bool:
        """Request the topics of unresolved regular expressions, or with `again` of all; True if a request is needed."""
        wanted = sorted({m.subscribed_regex for m in self.members.values() if m.subscribed_regex})
        for regex in [regex for regex in self.regexes if regex not in wanted]:
            step.emit(Tombstone((Kind.REGEX, self.group_id, regex)))
        regexes = tuple(regex for regex in wanted if again or regex not in self.regexes)
        if not regexes or self.resolving >= 0:
            return bool(regexes)
        self.resolving = step.ticket()
        version = step.image.version
        step.begin_task(
            ResolveRegexes(self.group_id, self.resolving, version, regexes, tuple(sorted(step.image.topics)))
        )
        return True

    def on_regexes_resolved(self, step: Step, event: RegexesResolved) -> None:
        """Take over resolved regular expressions; begin a new epoch if the group's topics changed."""
        if self.resolving != event.ticket:
            return
        self.resolving = -1
        in_use = {member.subscribed_regex for member in self.members.values()}
        for regex, names in event.topics.items():
            known = self.regexes.get(regex)
            if regex in in_use and (known is None or known.topics != names):
                step.emit(RegexResolved(event.group_id, regex, names, event.version, step.now.wall_ms))
        if event.version < step.image.version:
            self.request_resolution(step, again=True)
        self.check_topics(step)
        self.request_target(step)

    def check_topics(self, step: Step) -> None:
        """Begin a new epoch if the subscribed topics differ from those of the current one."""
        if self.members and metadata_hash(step.image, self.subscribed()) != self.metadata_hash:
            self.begin_epoch(step, "subscribed topics changed")

    def on_topics_changed(self, step: Step, change: ImageChange) -> None:
        """Handle a change of topics in a group that reads one of them, or may."""
        if not self.members:
            return
        if change.names_differ and any(member.subscribed_regex for member in self.members.values()):
            self.request_resolution(step, again=True)
        if not change.topics.isdisjoint(self.subscribed()):
            self.check_topics(step)

    def accept_target(self, step: Step, event: AssignmentComputed) -> bool:
        """Write a computed target as far as it differs, then its epoch; False if it is stale or failed."""
        if self.computing != event.ticket:
            return False
        self.computing = -1
        if event.failure is not None:
            step.log(event.group_id, f"target for epoch {event.epoch} not computed: {event.failure}", Level.ERROR)
            return False
        if event.epoch == self.epoch and not self.members.keys() <= event.assignment.keys():
            self.request_target(step)  # a static member was replaced meanwhile and has another id now
            return False
        for member_id in self.members:
            target = unpack(event.assignment.get(member_id, ()))
            if member_id not in self.targets or self.targets[member_id] != target:
                step.emit(TargetAssigned(event.group_id, member_id, pack(target)))
        step.emit(TargetEpochSet(event.group_id, event.epoch, step.now.wall_ms))
        return True
