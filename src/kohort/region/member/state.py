"""The state of a member, and the operations that its handlers share."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from uuid import UUID

from kohort.region import messages
from kohort.region.member import events
from kohort.region.member.events import Effect
from kohort.region.messages import CheckpointAttempt, Identity
from kohort.region.records import Contribution, Part, Position
from kohort.region.states import RegionMemberState

SUBSCRIBED, RECORDS_FETCHED = RegionMemberState.SUBSCRIBED, RegionMemberState.RECORDS_FETCHED
DRAINED, CHECKPOINTED = RegionMemberState.DRAINED, RegionMemberState.CHECKPOINTED
PENDING, RESET_COMPLETE = RegionMemberState.CR_RESET_PENDING, RegionMemberState.RESET_COMPLETE


@dataclass(frozen=True, slots=True)
class MemberBehaviour:
    """How a member takes part in checkpoints and in its consumer group.

    Attributes:
        holds_back: revoked partitions are kept until a checkpoint is complete, instead of resetting the region.
        reads_on: the member does not stop for a checkpoint, and contributes what it has finished. Its driver posts
            `RecordsFetched` before each batch begins and answers `DrainMember` at once. It posts `PartitionsRevoked`
            between batches, and begins none with these partitions afterwards.
        shares: the member's state moves with partitions, or it has none; otherwise no other member may be in its group.
        keeps: the region keeps the member's state while the member is absent; otherwise the member starts without
            state.
        of: the name of its query, common to the query's members (its siblings) alone; empty: it is not part of a query.
        sources: the number of members of its query.
        pinned: all queries of its group, when each partition belongs to one of them for ever; empty: not so.
        keyed: it saves a keyed state for each partition, which moves with the partition.
    """

    holds_back: bool = False
    reads_on: bool = False
    shares: bool = True
    keeps: bool = False
    of: str = ""
    sources: int = 1
    pinned: tuple[str, ...] = ()
    keyed: bool = False


BEHAVIOUR = MemberBehaviour()


class Member:
    """The state of one member's state machine.

    Attributes:
        begins: offset where the next contribution begins, for each partition that the control plane handed out.
        assigned: the partitions that the group has assigned.
        held: revoked partitions, held until a checkpoint is complete.
        covered: the held partitions that were revoked before the contribution, which has all records read from them.
        names: all members of the region that the control plane last reported.
        cut: the checkpoint attempt in which the member takes part: it drains, is drained or has contributed.
        contributed: the id of the checkpoint that it contributed to, and `ends` its end positions, until the outcome is
            known.
        failure: the error after which the member can't continue. It is sent to each new control plane, which may not
            know.
        wants_back: the reset that the member has requested, until one is ordered. Meanwhile the member takes part in no
            checkpoint, because its fetched records may be discarded already.
        going_back: a reset was ordered, and the application's state has not been reset yet.
        went_back: the member has reset, and no checkpoint has been completed since.
    """

    def __init__(
        self,
        region: str,
        name: str,
        incarnation: UUID,
        group: str,
        sink: str = "",
        how: MemberBehaviour = BEHAVIOUR,
        *,
        letters: str = "",
    ) -> None:
        """Initialise the state of a member that has not connected yet.

        Args:
            region: the region's name.
            name: the member's name.
            incarnation: the id of this object.
            group: the id of its consumer group.
            sink: the name of the sink that it writes to; empty: none.
            how: its way of taking part.
            letters: the name of its dead-letter sink; empty: none.
        """
        self.region, self.name, self.incarnation, self.group = region, name, incarnation, group
        self.sink, self.how, self.letters = sink, how, letters
        self.state = SUBSCRIBED
        self.resting = SUBSCRIBED  # its state when no checkpoint is in progress
        self.identity = Identity()
        self.term, self.epoch, self.sequence = -1, -1, 0
        self.names: tuple[str, ...] = ()
        self.assigned: dict[Part, None] = {}
        self.begins: dict[Part, int] = {}
        self.held: dict[Part, None] = {}
        self.covered: dict[Part, None] = {}
        self.cut: CheckpointAttempt | None = None
        self.contributed = 0
        self.ends: dict[Part, Position] = {}
        self.given: Contribution | None = None
        self.failure: messages.UnrecoverableFailure | None = None
        self.wants_back: messages.RegionResetRequest | None = None
        self.closing = self.went_back = self.going_back = False
        self.effects: list[Effect] = []
        self._asks = 0

    # -- operations

    def add_effects(self, *effects: Effect) -> None:
        self.effects += effects

    def send_report(self, report: messages.Report) -> None:
        self.add_effects(events.SendReport(report))

    def set_state(self, state: RegionMemberState) -> None:
        """Set the member's state, and return to it after the checkpoint in progress."""
        self.state = self.resting = state

    def held_positions(self) -> tuple[Position, ...]:
        """Return the partitions that the control plane handed out, each with the offset of its next contribution."""
        return tuple(
            Position(part.group, part.topic, part.topic_id, part.partition, begin)
            for part, begin in sorted(self.begins.items())
        )

    def request_start_offsets(self) -> None:
        """Ask the control plane for the start offsets of assigned partitions that it has not handed out yet."""
        wanted = tuple(part for part in self.assigned if part not in self.begins and part not in self.held)
        if wanted and self.epoch >= 0 and self.state is not PENDING and not self.going_back:
            self._asks += 1
            self.send_report(messages.StartOffsetsRequest(self._asks, wanted))

    def forget_assigned_partitions(self, parts: Iterable[Part]) -> None:
        for part in parts:
            self.assigned.pop(part, None)
            self.begins.pop(part, None)
            self.held.pop(part, None)
            self.ends.pop(part, None)

    def release_partitions(self, parts: Iterable[Part]) -> None:
        """Stop reading revoked or lost partitions, and report their release to the control plane."""
        gone = tuple(parts)
        self.forget_assigned_partitions(gone)
        self.add_effects(events.ReleasePartitions(gone))
        self.send_report(messages.AssignmentChanged(self.identity, gone))

    def resume_reading(self) -> None:
        """Read and submit again after a checkpoint."""
        self.cut = None
        self.state = self.resting
        self.add_effects(events.ResumeSubmitting(), events.StartPolling(slowly=self.resting is RESET_COMPLETE))
