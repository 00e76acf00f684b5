"""A member of a consumer group that does not read: for an application that fetches by other means, or elsewhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self

from kohort.client.offset_values import Assignment, OffsetAndMetadata, Revocation
from kohort.ids import TopicPartition


class GroupMember:
    """Membership alone: joins, holds an assignment, heartbeats in the background, commits any offsets.

        member = GroupMember("127.0.0.1:9092", "flights-etl", topics=["flights"], client_id="spark")
        assignment = member.wait_assignment(timeout_ms=30_000)
        ...
        revocation = member.revocation()            # not None: the group wants partitions back
        if revocation and not revocation.lost:
            ...finish the work at hand, commit...
        if revocation:
            member.release()                        # acknowledges; the next assignment comes by itself
        member.close()

    A revocation waits for `release()`; the member heartbeats meanwhile. When the rebalance timeout (`max_poll_interval_ms`)
    passes first, the coordinator goes on without it: the revocation turns into one with `lost=True`, and commits of the old
    generation raise CommitFailedError. There is no other time limit: a member that is not looked at stays a member.
    """

    def __init__(
        self,
        bootstrap_servers: str | list[str],
        group_id: str,
        *,
        topics: Iterable[str] | None = None,
        pattern: str | None = None,
        user_data: bytes | None = None,
        **settings: Any,
    ) -> None:
        """Start joining in the background.

        Args:
            bootstrap_servers: HOST:PORT, several with commas between or as a list.
            group_id: The group.
            topics: What to subscribe to; or
            pattern: A regular expression for it.
            user_data: Handed to the assignor.
            **settings: Of `ConsumerConfig`, by either kind of name.
        """

    def assignment(self) -> Assignment:
        """What is held now: partitions, generation, member id; empty before the first join and while nothing is held."""

    def wait_assignment(self, timeout_ms: float, *, after_generation: int = -1) -> Assignment:
        """Wait until an assignment of a generation above `after_generation` is held and no revocation is pending.

        Raises:
            TimedOutError: none within the time; says what the member was waiting for.
            KafkaError: the group can't be joined (not authorized, no common assignor …).
        """

    def revocation(self) -> Revocation | None:
        """What the group wants back, until `release`; None otherwise."""

    def wait_change(self, timeout_ms: float) -> bool:
        """Wait until assignment or revocation differ from what they were at the last call of this method; False: time is over."""

    def release(self) -> None:
        """Acknowledge the pending revocation. Does nothing without one."""

    def subscribe(self, topics: Iterable[str] | None = None, *, pattern: str | None = None) -> None:
        """Change the subscription; the group rebalances."""

    def commit(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata | int], *, generation: int | None = None, timeout_ms: float | None = None
    ) -> None:
        """Commit for the member's generation and wait.

        Args:
            offsets: Next offsets to read, with metadata if wanted.
            generation: Refuse locally unless this is still the generation held; None: whichever is held.
            timeout_ms: None: `default_api_timeout_ms`.

        Raises:
            CommitFailedError: the generation is over.
        """

    def committed(self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None where there is none."""

    def partitions_of(self, topics: Iterable[str], timeout_ms: float | None = None) -> dict[str, list[int]]:
        """Partition numbers of topics, asked now; unknown topics are left out."""

    def beginning_offsets(self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        """First offsets that can be read."""

    def end_offsets(self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None) -> dict[TopicPartition, int]:
        """Offsets after the last one that can be read (the last stable one with read_committed)."""

    def offsets_for_times(self, times: Mapping[TopicPartition, int], timeout_ms: float | None = None) -> dict[TopicPartition, Any]:
        """`OffsetAndTimestamp` of the first record at or after a time (ms since the epoch); None where there is none."""

    def close(self, timeout_ms: float = 3_000) -> None:
        """Leave the group at once and end. Does nothing the second time."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()
