"""A checker of a coordinator's soft state after loading, from the journal: deadlines, pending work, rebalances."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kohort.groups.classic.group import ClassicGroup
from kohort.groups.config import GroupConfig
from kohort.groups.consumer.group import ConsumerGroup
from kohort.groups.consumer.members import MemberSoftState
from kohort.groups.effects import Computation, ComputeAssignment, Effects, GroupState, Now, ResolveRegexes
from kohort.groups.events import Topic
from kohort.groups.machine import GroupMachine
from kohort.groups.records import ReconciliationState, Record
from kohort.groups.timers import Timer
from simulation.checkers.journal_model import ConsumerJournal, GroupJournal, JournalModel, pairs
from simulation.checkers.property import Checker, Holder
from simulation.harness.server import Waiting
from simulation.harness.world import World


class SoftStateChecker(Checker):
    """A coordinator that begins to serve watches every member, and resumes what was unfinished.

    The checker also loads coordinators from the journal at moments without a restart.
    """

    SHARE = 0.005

    def __init__(self, world: World, members: list[Holder], config: GroupConfig) -> None:
        super().__init__(world, members, config)
        self._now_ms = 0

    def on_loaded(self, machine: GroupMachine, outcome: Effects) -> None:
        self._check(machine, outcome, self.journal)

    def on_durable(self, machine: GroupMachine, records: list[Record], waiting: Waiting) -> None:
        if not self.chance.likely(self.SHARE):
            return
        again, journal = type(machine)(machine.context.config), JournalModel()
        saved = list(machine.snapshot())
        for record in saved:
            again.apply(record)
        journal.take(saved)
        outcome = again.on_loaded(Now(self.world.now_ms, self.world.wall_ms), machine.context.image)
        self._check(again, outcome, journal)

    def _check(self, machine: GroupMachine, outcome: Effects, before: JournalModel) -> None:
        """Check every group; `before` is the journal's model when this coordinator loaded."""
        context = machine.context
        if not self._runs(context.expiry, self.config.offsets_retention_check_ms):
            self.fail(f"offsets are looked at at {context.expiry.due_ms}")
        topics = context.image.topics
        after = JournalModel()
        after.take(machine.snapshot())
        for group_id, group in context.ledger.groups.items():
            known, now = before.groups.get(group_id), after.groups[group_id]
            classic, consumer = group.membership_as(ClassicGroup), group.membership_as(ConsumerGroup)
            if classic is not None:
                self._check_classic(classic, now)
            elif consumer is not None and known is not None and known.consumer is not None and now.consumer is not None:
                for member_id in now.consumer.members:
                    self._check_member(group_id, consumer, now.consumer, member_id)
                self._check_work(group_id, known.consumer, now.consumer, outcome, topics)
                self._check_watch(group_id, consumer, now.consumer)

    def _runs(self, timer: Timer | None, delay_ms: int | None) -> bool:
        """Return whether a timer is set and ends in `delay_ms`; for None, whether it is not set."""
        due_ms = None if timer is None else timer.due_ms
        return due_ms is None if delay_ms is None else due_ms == self.world.now_ms + delay_ms

    def _check_member(self, group_id: str, consumer: ConsumerGroup, journal: ConsumerJournal, member_id: str) -> None:
        presence, member = consumer.presences.get(member_id), journal.members[member_id]
        if presence is None:
            self.fail(f"{member_id} of {group_id} is not looked after")
            return
        is_classic = member.classic_protocols is not None
        session_ms = member.classic_session_timeout_ms if is_classic else self.config.consumer_session_timeout_ms
        if not self._runs(presence.session, session_ms):
            self.fail(
                f"the session of {member_id} of {group_id} ends at {presence.session.due_ms}, not in {session_ms}"
            )
        gives_up = journal.state_of(member_id) is ReconciliationState.UNREVOKED_PARTITIONS and not is_classic
        if not self._runs(presence.revocation, member.rebalance_timeout_ms if gives_up else None):
            self.fail(f"{member_id} of {group_id} has to give up until {presence.revocation.due_ms}")
        if not is_fresh(presence):
            self.fail(f"{member_id} of {group_id} begins with what an earlier coordinator knew")

    def _check_work(
        self,
        group_id: str,
        before: ConsumerJournal,
        journal: ConsumerJournal,
        outcome: Effects,
        topics: Mapping[str, Topic],
    ) -> None:
        """Check that missing results are requested: topics of all patterns, then a target of the newest epoch."""
        mine = [work for work in outcome.work if isinstance(work, Computation) and work.group_id == group_id]
        patterns = {member.subscribed_regex for member in journal.members.values() if member.subscribed_regex}
        asked = {regex for work in mine if isinstance(work, ResolveRegexes) for regex in work.regexes}
        if asked != patterns:
            self.fail(f"topics of {asked} are asked for, members of {group_id} read {patterns}")
        targets = [work for work in mine if isinstance(work, ComputeAssignment)]
        is_open = bool(journal.members) and journal.epoch > journal.target_epoch and not patterns
        if [work.epoch for work in targets] != ([journal.epoch] if is_open else []):
            self.fail(f"targets of {[work.epoch for work in targets]} are asked for, {group_id} is {journal}")
        for work in targets:
            read = {name: sorted(journal.topics_of(member)) for name, member in journal.members.items()}
            if {name: sorted(work.subscribed[name]) for name in work.members} != read:
                self.fail(f"a target for {dict(work.subscribed)} is asked for, members of {group_id} read {read}")
        if self._must_move_on(before, topics) and journal.epoch == before.epoch:
            self.fail(f"{group_id} goes on with targets for partitions that are gone, or without some that came")

    @staticmethod
    def _must_move_on(journal: ConsumerJournal, topics: Mapping[str, Topic]) -> bool:
        """Return whether a new target is due: the old one does not match the existing partitions of members' topics.

        Only meaningful if the target is that of the newest epoch.
        """
        if not journal.members or journal.epoch != journal.target_epoch:
            return False
        names = {name for member in journal.members.values() for name in journal.topics_of(member)}
        present = {
            (topics[name].id, number) for name in names if name in topics for number in range(topics[name].partitions)
        }
        return present != {pair for name in journal.members for pair in journal.targets.get(name, ())}

    def _check_watch(self, group_id: str, consumer: ConsumerGroup, journal: ConsumerJournal) -> None:
        """Check that a group watches for silent members if a member of the consumer protocol has to move partitions."""
        moves = any(
            member.classic_protocols is None
            and journal.epoch_of(name) >= 0
            and (has(journal, name) != journal.targets.get(name, frozenset()) or gives_up(journal, name))
            for name, member in journal.members.items()
        )
        runs = consumer.watch is not None and consumer.watch.due_ms is not None
        if moves and not runs and all(member.server_assignor is None for member in journal.members.values()):
            self.fail(f"no one looks whether those are silent that {group_id} waits for")

    def _check_classic(self, classic: ClassicGroup, journal: GroupJournal) -> None:
        saved = journal.saved
        members = {} if saved is None else {member.member_id: member for member in saved.members}
        if classic.members.keys() != members.keys():
            self.fail(f"{classic.group_id} begins with {list(classic.members)}, saved are {list(members)}")
        for name, member in members.items():
            if not self._runs(classic.members[name].session, member.session_timeout_ms):
                self.fail(f"the session of {name} of {classic.group_id} ends at {classic.members[name].session.due_ms}")
        expected = GroupState.STABLE if members else GroupState.EMPTY
        if saved is not None and members:
            interrupted = journal.started > saved.generation or len(members) > self.config.group_max_size
            expected = GroupState.PREPARING_REBALANCE if interrupted else expected
        leaders_round = classic.state is GroupState.PREPARING_REBALANCE and expected is GroupState.STABLE
        if classic.state is not expected and not leaders_round:
            self.fail(f"{classic.group_id} begins as {classic.state} and should as {expected}")
        longest_ms = max((member.rebalance_timeout_ms for member in classic.members.values()), default=0)
        joins = classic.state is GroupState.PREPARING_REBALANCE
        if not self._runs(classic.join_phase, longest_ms if joins else None):
            self.fail(f"the join phase of {classic.group_id} ends at {classic.join_phase.due_ms}")


def is_fresh(presence: MemberSoftState) -> bool:
    """Return whether a member's soft state is as after a load: nothing in it comes from before the restart."""
    waits: tuple[Any, ...] = (presence.waiting, presence.joining, presence.long_poll, presence.gone_ms)
    timers = (presence.join_phase, presence.sync_phase, presence.long_poll_timer)
    flags = (presence.lost, presence.overdue, presence.interval_ms)
    return (
        not any(flags)
        and all(wait is None for wait in waits)
        and all(timer is None or timer.due_ms is None for timer in timers)
    )


def has(journal: ConsumerJournal, member_id: str) -> frozenset[Any]:
    """Return the partitions that a member was assigned."""
    current = journal.current.get(member_id)
    return frozenset() if current is None else pairs(current.assigned)


def gives_up(journal: ConsumerJournal, member_id: str) -> bool:
    """Return whether a member still has to revoke partitions."""
    return journal.state_of(member_id) is ReconciliationState.UNREVOKED_PARTITIONS
