"""Coordinators and members of the push protocol with one known fault each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from msgspec.structs import replace

from kohort.client.group.push import PushMembership
from kohort.client.net.connection import RawConnection
from kohort.errors import ErrorCode
from kohort.groups.config import GroupConfig
from kohort.groups.effects import Cause, Effects, Now, Push, RebalanceReason, StartConsumer
from kohort.groups.events import ConnectionLost, PushRequestKind
from kohort.groups.machine import GroupMachine
from kohort.groups.push.group import PushGroup, PushRegistry
from kohort.groups.push.members import PushMember, PushMembers
from kohort.groups.push.rebalance import PushRebalance
from kohort.groups.push.requests import PushRequests
from kohort.groups.records import PushMemberSaved
from kohort.groups.step import Step
from kohort.groups.topics import TopicIdPartitions
from kohort.wire.push import CoordinatorRequest, ErrorResponse
from simulation.checkers.group_checkers import OwnershipChecker
from simulation.checkers.property import Checker
from simulation.checkers.push_checkers import ChangeChecker, StartedChecker, StartOffsetChecker
from simulation.harness.push_gate import PushGate, Registered
from simulation.mutants.swapped import Swapped


class StartsBeforeStops(Swapped):
    """A coordinator that starts a consumer with partitions whose owner has not answered its Stop."""

    module, name = PushMembers, "is_free_for"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check that treats every partition as free."""
        return lambda push, member_id, pairs: True


class DropsChanges(Swapped):
    """A coordinator that forgets a change that comes while a rebalance is under way, as the specification does."""

    module, name = PushRebalance, "request_rebalance"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a request that is dropped during a rebalance."""

        def request_rebalance(push: PushGroup, step: Step, cause: Cause) -> None:
            if not push.rebalancing or not push.members:
                real(push, step, cause)

        return request_rebalance


class ForgetsTheReturned(Swapped):
    """A coordinator that does not start a returning consumer if no partition moves."""

    module, name = PushRequests, "start_member"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a start of moved consumers only."""

        def start_member(push: PushGroup, step: Step, member: PushMember, want: Any) -> None:
            if member.session.subject in push.moving:
                real(push, step, member, want)

        return start_member


class FreesAtDisconnects(Swapped):
    """A coordinator that evicts a consumer when its connection ends."""

    module, name = PushRegistry, "on_connection_lost"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return an immediate eviction."""

        def lost(push: PushGroup, step: Step, member_id: str, event: ConnectionLost) -> None:
            real(push, step, member_id, event)
            member = push.present.get(member_id)
            if member is not None and member.is_gone:
                push.evict_member(step, Cause(RebalanceReason.DISCONNECTED, "its connection has ended", member_id))

        return lost


class HalvesSessions(Swapped):
    """A coordinator that ends sessions after half their length."""

    module, name = PushRequests, "eviction_timeout_ms"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return half the timeout."""

        def eviction_timeout_ms(push: PushGroup, step: Step, saved: PushMemberSaved) -> int:
            return saved.session_timeout_ms // 2

        return eviction_timeout_ms


class CallsRepeatsFirst(Swapped):
    """A coordinator whose repeated Ping claims that all answers have arrived."""

    module, name = PushRequests, "ping_member"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a Ping that names no retries, although they are counted."""

        def ping_member(push: PushGroup, step: Step, member: PushMember, retries: int = 0) -> None:
            real(push, step, member)

        return ping_member


class ForgetsStopsThatAreOut(Swapped):
    """A coordinator that leaves a consumer alone when its target is what it owns, although a Stop was sent to it."""

    module, name = PushRebalance, "needs_restart"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a check that knows only answered Stops."""

        def must_move(push: PushGroup, member_id: str, want: TopicIdPartitions) -> bool:
            return want != push.owned_by(member_id) or push.present[member_id].stopped

        return must_move


class StartsFromTheFirst(GroupMachine):
    """A coordinator that starts a partition at the position of its first start."""

    def __init__(self, config: GroupConfig) -> None:
        super().__init__(config)
        self._first: dict[tuple[str, str, int], int] = {}

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, with these positions."""
        outcome = super().step(event, now)
        for at, (connection, value) in enumerate(outcome.pushes):
            if isinstance(value, StartConsumer):
                positions = tuple(
                    position._replace(offset=self._first.setdefault((value.group_id, *position[:2]), position.offset))
                    for position in value.positions
                )
                outcome.pushes[at] = Push(connection, value._replace(positions=positions))
        return outcome


class _BySize(PushGate):
    def _take_answer(self, registered: Registered, data: memoryview) -> None:
        if registered.asked:
            asked, value = registered.asked[0]
            if asked is PushRequestKind.PING and len(data) == len(ErrorResponse(0).encode_frame()):
                registered.asked[0] = PushRequestKind.STOP, value
        super()._take_answer(registered, data)


class FindsForWhoFinds(Swapped):
    """A coordinator that writes the log's end as position although a consumer chooses its own start position."""

    module, name = PushRequests, "start_member"

    @staticmethod
    def swap(real: Callable[..., Any]) -> Callable[..., Any]:
        """Return a start that treats every consumer as asking for the beginning or end."""

        def start_member(push: PushGroup, step: Step, member: PushMember, want: Any) -> None:
            member_id = member.session.subject
            saved = push.members[member_id]
            push.members[member_id] = replace(saved, from_begin=bool(saved.from_begin))
            real(push, step, member, want)
            push.members[member_id] = saved

        return start_member


class StartsWhoFindsAtTheBegin(GroupMachine):
    """A coordinator that starts a consumer that chooses its own start positions at the beginning."""

    def step(self, event: Any, now: Now) -> Effects:
        """Act as the real coordinator, with no position left out."""
        outcome = super().step(event, now)
        for at, (connection, value) in enumerate(outcome.pushes):
            if isinstance(value, StartConsumer):
                positions = tuple(position._replace(offset=max(0, position.offset)) for position in value.positions)
                outcome.pushes[at] = Push(connection, value._replace(positions=positions))
        return outcome


class MatchesAnswersBySize(GroupMachine):
    """A coordinator that matches responses by length: an empty Ping response counts as RestartFetcher."""

    push_gate: ClassVar = _BySize


class _AnyPing(PushMembership):
    @staticmethod
    def _confirms(asked: CoordinatorRequest) -> bool:
        return True


class RenewsByRetries(GroupMachine):
    """A consumer that takes a repeated Ping as a sign that its answers arrive."""

    memberships: ClassVar = {"push": _AnyPing}


class _FromFrames(PushMembership):
    def _renew(self, sent_ms: float) -> None:
        super()._renew(self.cluster.runtime.clock_with_sleep_ms())


class _Hasty(PushMembership):
    def _stop_if_released(self, link: RawConnection) -> bool:
        self._stopping = False
        self._send_response(link, ErrorResponse(ErrorCode.NONE).encode_frame())
        return True


class CountsLeasesFromFrames(GroupMachine):
    """A consumer that counts its lease from the reading of a frame: an old one in a buffer renews it."""

    memberships: ClassVar = {"push": _FromFrames}


class AnswersBeforeRelease(GroupMachine):
    """A consumer that answers a Stop while its application still processes."""

    memberships: ClassVar = {"push": _Hasty}


PUSH_MUTANTS: dict[type[GroupMachine], type[Checker]] = {
    StartsBeforeStops: OwnershipChecker,
    DropsChanges: ChangeChecker,
    ForgetsStopsThatAreOut: StartedChecker,
    ForgetsTheReturned: StartedChecker,
    MatchesAnswersBySize: StartedChecker,
    StartsFromTheFirst: StartOffsetChecker,
    FindsForWhoFinds: StartOffsetChecker,
    StartsWhoFindsAtTheBegin: StartOffsetChecker,
    CallsRepeatsFirst: OwnershipChecker,
    RenewsByRetries: OwnershipChecker,
    FreesAtDisconnects: OwnershipChecker,
    HalvesSessions: OwnershipChecker,
    CountsLeasesFromFrames: OwnershipChecker,
    AnswersBeforeRelease: OwnershipChecker,
}
