"""A checker of epochs: a consumer group accepts requests with the right epoch, and no others. Source: KIP-848."""

from __future__ import annotations

from typing import Any

from kohort.errors import ErrorCode
from kohort.groups.effects import ConsumerGroupHeartbeatReply, Effects, HeartbeatReply, OffsetFetchReply, SyncGroupReply
from kohort.groups.events import ConsumerGroupHeartbeat, Heartbeat, OffsetCommit, OffsetFetch, SyncGroup
from kohort.groups.records import ReconciliationState
from simulation.checkers.journal_model import ConsumerJournal, pairs
from simulation.checkers.property import Checker
from simulation.harness.server import Waiting

Answer = ConsumerGroupHeartbeatReply | HeartbeatReply | SyncGroupReply | OffsetFetchReply


class StaleEpochChecker(Checker):
    """A heartbeat, sync or fetch is accepted with the member's own epoch, and rejected with any other.

    One exception: a heartbeat may name the previous epoch, when only the response can have been lost. It must then
    claim no partition that was not assigned to the member.
    """

    skips = frozenset({OffsetCommit})

    def on_stepped(self, event: Any, outcome: Effects, waiting: Waiting) -> None:
        if not isinstance(event, ConsumerGroupHeartbeat | Heartbeat | SyncGroup | OffsetFetch):
            return
        consumer = self.journal.consumer(event.group_id)
        if consumer is None:
            return
        answers = (value for request, value in outcome.replies if request == event.request)
        error = next((value.error for value in answers if isinstance(value, Answer)), ErrorCode.NONE)
        if isinstance(event, ConsumerGroupHeartbeat):
            if event.member_epoch > 0:
                self._check_heartbeat(consumer, event, error)
        elif isinstance(event, OffsetFetch):
            self._check_fetch(consumer, event, error)
        elif error is ErrorCode.NONE and consumer.members:
            self._check_classic(consumer, event)

    def _check_heartbeat(self, consumer: ConsumerJournal, event: ConsumerGroupHeartbeat, error: ErrorCode) -> None:
        current, said = consumer.current.get(event.member_id), event.member_epoch
        holder = None if event.instance_id is None else consumer.holder_of(event.instance_id)
        known = event.member_id in consumer.members and (event.instance_id is None or holder == event.member_id)
        entitled = known and current is not None and said == current.member_epoch
        if known and current is not None and said == current.previous_epoch < current.member_epoch:
            entitled = event.owned is not None and pairs(event.owned) <= pairs(current.assigned)
        if error is ErrorCode.NONE and not entitled:
            self.fail(f"a heartbeat of {event.member_id} at {said} is taken, it is at {current}")
        if error is ErrorCode.FENCED_MEMBER_EPOCH and entitled:
            self.fail(f"a heartbeat of {event.member_id} at {said} is refused, it is at {current}")

    def _check_fetch(self, consumer: ConsumerJournal, event: OffsetFetch, error: ErrorCode) -> None:
        if event.member_id is None and event.member_epoch < 0:
            expected = ErrorCode.NONE
        elif event.member_id not in consumer.members:
            expected = ErrorCode.UNKNOWN_MEMBER_ID
        elif event.member_epoch == consumer.epoch_of(event.member_id):
            expected = ErrorCode.NONE
        elif consumer.members[event.member_id].classic_protocols is None:
            expected = ErrorCode.STALE_MEMBER_EPOCH
        else:
            expected = ErrorCode.ILLEGAL_GENERATION
        if error is not expected:
            self.fail(f"{event} is answered {error.name} and not {expected.name}")

    def _check_classic(self, consumer: ConsumerJournal, event: Heartbeat | SyncGroup) -> None:
        """A classic member continues only with its own epoch, if that is the newest; it syncs before it revokes."""
        member = consumer.members.get(event.member_id)
        epoch, state = consumer.epoch_of(event.member_id), consumer.state_of(event.member_id)
        if member is None or member.classic_protocols is None or event.generation != epoch:
            self.fail(f"{event} is taken, its member is at {epoch}")
        gives_up = state is ReconciliationState.UNREVOKED_PARTITIONS
        if (gives_up and isinstance(event, Heartbeat)) or (epoch < consumer.epoch and not gives_up):
            self.fail(f"{event} is taken, its member is {state.name} at {epoch} and the group at {consumer.epoch}")
