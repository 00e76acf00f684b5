"""Offsets, positions and assignments as the client's callers see them. Values only."""

from __future__ import annotations

from dataclasses import dataclass, field

from kohort.ids import TopicPartition


@dataclass(frozen=True, slots=True)
class OffsetAndMetadata:
    """A committed offset: the next one to read, and what the committer wrote beside it."""

    offset: int
    metadata: str = ""
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class OffsetAndTimestamp:
    """What a search by time found: the first record at or after it."""

    offset: int
    timestamp: int
    leader_epoch: int = -1


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a group gave to a member.

    Attributes:
        partitions: Sorted.
        generation: The classic generation, or the KIP-848 member epoch; -1 before the first join.
        member_id: As the coordinator knows it.
        user_data: What the assignor attached, if anything.
    """

    partitions: tuple[TopicPartition, ...] = ()
    generation: int = -1
    member_id: str = ""
    user_data: bytes | None = None


@dataclass(frozen=True, slots=True)
class Revocation:
    """Partitions that the group wants back. They stay the member's until it acknowledges.

    Attributes:
        partitions: Sorted.
        deadline_ms: On the core's monotonic clock (`time.monotonic() * 1000`): when the coordinator will go on without
            this member.
        lost: True when they belong to someone else already (session expired, fenced): nothing can be committed for
            them.
    """

    partitions: tuple[TopicPartition, ...] = ()
    deadline_ms: float = field(default=float("inf"))
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Rebalance:
    """One that a member has been through: a new assignment, from the first on, whatever it changed.

    Attributes:
        number: Of this member's; the first is 1.
        generation: As in `Assignment`, of what is held since.
        member_id: The same.
        held: Partitions since.
        gained, lost: Partitions that it has and had not before, or had and has not.
        began_ms, ended_ms: On the core's monotonic clock: from when the member was asked to give up, had to join
            (again), or was put out, until it held its assignment.
    """

    number: int
    generation: int
    member_id: str
    held: int
    gained: int
    lost: int
    began_ms: float
    ended_ms: float


@dataclass(frozen=True, slots=True)
class GroupMetadata:
    """A consumer's place in its group, for a transaction that commits its offsets: a stale one is refused.

    Source: KIP-447.
    """

    group_id: str
    generation_id: int = -1
    member_id: str = ""
    group_instance_id: str | None = None


class RebalanceListener:
    """Callbacks around a rebalance, called by the thread that polls, inside `poll`. Override what is needed."""

    def on_partitions_revoked(self, partitions: list[TopicPartition]) -> None:
        """These are about to be given up; offsets can still be committed."""

    def on_partitions_assigned(self, partitions: list[TopicPartition]) -> None:
        """These were added; positions can be sought."""

    def on_partitions_lost(self, partitions: list[TopicPartition]) -> None:
        """These belong to others already; commits for them fail. Calls `on_partitions_revoked` unless overridden."""
        self.on_partitions_revoked(partitions)


class HoldingListener(RebalanceListener):
    """Lets partitions go when the application says so, not when a callback returns.

    From `on_partitions_wanted` on, nothing of them is returned, their positions stay, and they can be committed; polls
    return the others' records and keep the member alive. `release` gives them up (`on_partitions_revoked` is called
    then). The group waits for that, at most for `max_poll_interval_ms`; then they are lost.
    """

    def on_partitions_wanted(self, partitions: list[TopicPartition]) -> None:
        """The group wants these back."""
