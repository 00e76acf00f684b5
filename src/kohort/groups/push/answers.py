"""What follows the answers of push consumers, and their absence: rebalances go on, are retried, or fail."""

from __future__ import annotations

from kohort.errors import ErrorCode
from kohort.groups.effects import Level, Meter
from kohort.groups.events import (
    ConsumerAnswered,
    OffsetsFound,
    OwnersMissing,
    PartitionsDivided,
    PushPosition,
    PushRequestKind,
)
from kohort.groups.pairs import unpack
from kohort.groups.push.members import PushMember
from kohort.groups.push.registration import PushMemberRegistration
from kohort.groups.push.requests import first_ping_ms, interval_ms
from kohort.groups.step import Step

LOGGED_PARTITIONS = 5
"""The number of partitions named in a log line."""


class PushAnswers(PushMemberRegistration):
    """The effect of answers and results, and of time limits that pass without them."""

    def on_answered(self, step: Step, event: ConsumerAnswered) -> None:
        """Process the answer to a consumer's oldest request; ignore one from a former connection."""
        member = self.present.get(event.member_id)
        if member is None or member.connection != event.connection or not member.out:
            return
        member.out -= 1
        saved = self.members[event.member_id]
        member.alive(step, self.session_bound_ms(step, saved))
        if event.asked is PushRequestKind.PING and saved.auto_commit:
            self.commit_positions(step, event)
        if member.out:
            return  # a Ping was repeated: the next request waits for all its answers
        member.asked = None
        step.run(member.ping, interval_ms(saved) if event.asked is PushRequestKind.PING else first_ping_ms(saved))
        if event.error is not ErrorCode.NONE:
            self.request_refused(step, member, event)
        elif event.asked is PushRequestKind.PING:
            self.ping_answered(step, member)
        elif event.asked is PushRequestKind.STOP:
            member.refusals, member.stopped, member.ending, member.told = 0, True, True, None
            member.still_ms = step.now.mono_ms if self.owned_by(event.member_id) else None
        else:
            self.start_answered(step, member)
        if self.present.get(event.member_id) is member:
            self.advance_member(step, event.member_id)

    def commit_positions(self, step: Step, event: ConsumerAnswered) -> None:
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

    def request_refused(self, step: Step, member: PushMember, event: ConsumerAnswered) -> None:
        """Handle an error in the answer to a Stop or a Start: stop the consumer again.

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

    def ping_answered(self, step: Step, member: PushMember) -> None:
        """Handle a Ping's answer: refuse a conflicting registration, and free the partitions of a stopped member."""
        member_id = member.session.subject
        member.back = False
        if member.proves:
            self.refuse_conflicting(step, member)
        if member.ending:
            member.ending = False
            self.release_partitions(step, member_id)

    def start_answered(self, step: Step, member: PushMember) -> None:
        """Record that a member reads the partitions of its Start."""
        member_id = member.session.subject
        member.refusals, member.stopped = 0, False
        owned = member.told = self.owned_by(member_id)
        if member.still_ms is not None:
            self.still.append(step.now.mono_ms - member.still_ms)
            member.still_ms = None
        want = self.moving.get(member_id)
        if want is not None and frozenset(self.named_pairs(step, want).values()) == owned:
            self.moved(member_id)
            self.complete_if_all_started(step)

    def on_ping_due(self, step: Step, member_id: str) -> None:
        """Ping a member that had no request for an interval, or repeat a late Ping; nothing else is repeated."""
        member = self.present.get(member_id)
        if member is None or member.is_gone:
            return
        saved = self.members[member_id]
        if member.asked is None:
            self.ping_member(step, member)
        elif member.claim is not None:
            self.replace_unanswering(step, member)
        elif member.asked is PushRequestKind.PING and member.out <= step.config.push_failed_requests_max:
            self.ping_member(step, member, member.out)
        else:
            step.run(member.ping, interval_ms(saved))

    def on_offsets_found(self, step: Step, event: OffsetsFound) -> None:
        """Write found offsets as positions, so that every later consumer starts from the same ones."""
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
            self.retry_later(step)
        else:
            self.advance_member(step, event.member_id)

    def on_partitions_divided(self, step: Step, event: PartitionsDivided) -> None:
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
            member_id: unpack(given) for member_id, given in event.assignment.items() if member_id in self.members
        }
        if step.config.push_rebalance == "all" and self.needs_rebalance(targets):
            self.to_move(targets)
        else:
            self.to_move({member_id: want for member_id, want in targets.items() if self.must_move(member_id, want)})
        self.unregistered = {}
        step.run(self.attempts, self.attempt_timeout_ms())
        for member_id in list(self.moving):
            self.advance_member(step, member_id)
        self.complete_if_all_started(step)

    def on_attempt_end(self, step: Step, _subject: str) -> None:
        """Retry the rebalance because an attempt took too long."""
        if self.rebalancing:
            late = ", ".join(sorted(self.moving)[:5])
            step.log(self.group_id, f"rebalance attempt {self.attempt + 1} timed out; waiting for {late}")
            self.retry_rebalance(step)

    def retry_rebalance(self, step: Step) -> None:
        """Retry the rebalance after the backoff, or let it fail."""
        self.attempts.cancel()
        self.attempt += 1
        if self.attempt > step.config.push_rebalance_retries:
            self.fail_rebalance(step)
        step.run(self.backoff, step.config.push_rebalance_backoff_ms)

    def fail_rebalance(self, step: Step) -> None:
        """Let the rebalance fail: members without an answer are disconnected, and evicted when their sessions end."""
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
        step.count(Meter.PUSH_FAILED)
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
                self.advance_member(step, member_id)

    def on_owners_missing(self, step: Step, event: OwnersMissing) -> None:
        """Rebalance because owner nodes were deleted: the owners of those partitions are stopped and started."""
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
            self.request_rebalance(step, "the owners of partitions were deleted")
