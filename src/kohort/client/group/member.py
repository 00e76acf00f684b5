"""A member of a consumer group that does not read: for an application that fetches by other means, or elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from kohort.client.group.membership import LEAVE_MS, Membership
from kohort.client.group.protocols import join_group
from kohort.client.group.subscription import Subscription
from kohort.client.lookups import Lookups
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.offsets import (
    Assignment,
    GroupMetadata,
    OffsetAndMetadata,
    Rebalance,
    Revocation,
    commit_offsets,
    committed_offsets,
)
from kohort.client.settings import ConsumerConfig, client_config
from kohort.errors import CommitFailedError, ErrorCode, KafkaError, TimedOutError
from kohort.ids import TopicPartition


class GroupMember(Lookups):
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

    A revocation waits for `release()`; the member heartbeats meanwhile. When the rebalance timeout
    (`max_poll_interval_ms`, in the push protocol a session) passes first, the coordinator goes on without it: the
    revocation turns into one with `lost=True`, and commits of the old generation raise CommitFailedError. There is no
    other time limit: a member that is not looked at stays a member.
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
        subscription = Subscription(tuple(topics or ()), pattern, user_data)
        config = client_config(ConsumerConfig, bootstrap_servers, {**settings, "group_id": group_id})
        super().__init__(ThreadClient(config), config)
        self.group_id = group_id
        self._membership = join_group(self._client.cluster, self.config, poll_bound=False)
        self._seen = 0
        self._client.guard(self, _abandon, self._membership)
        with self._client.lock:
            self._membership.subscribe(subscription)
            self._client.wake()

    def assignment(self) -> Assignment:
        """What is held now: partitions, generation, member id.

        Empty before the first join and while nothing is held.
        """
        with self._client.lock:
            return self._membership.assignment

    def wait_assignment(self, timeout_ms: float, *, after_generation: int = -1) -> Assignment:
        """Wait until an assignment of a generation above `after_generation` is held and owned.

        No revocation is pending then.

        Raises:
            TimedOutError: none within the time; says what the member was waiting for.
            KafkaError: the group can't be joined (not authorized, no common assignor …).
        """
        member = self._membership

        def settled() -> bool:
            settled = member.holding and member.owns and member.assignment.generation > after_generation
            return member.error is not None or settled

        if not self._client.wait(settled, timeout_ms / 1000):
            why = self.waits_for()
            raise TimedOutError(f"group {self.group_id!r}: no assignment within {timeout_ms:.0f} ms: {why}")
        self._raise_error()
        return self.assignment()

    def waits_for(self) -> str:
        """Say why no assignment is held: for error texts and logs."""
        with self._client.lock:
            member = self._membership
            silent = "the coordinator is silent" if member.lapsed else f"the member is {member.state.value}"
            return self._client.cluster.unreachable() or silent

    def owns(self) -> bool:
        """Whether work on what is held may begin: the coordinator has answered lately.

        Always so where the broker tells no lease.

        See `kohort.io.processes`.
        """
        with self._client.lock:
            return self._membership.owns

    def revocation(self) -> Revocation | None:
        """What the group wants back, until `release`; None otherwise.

        Raises:
            KafkaError: this member can't be in the group any more (fenced by another with its instance id, not
                authorized …).
        """
        self._raise_error()
        with self._client.lock:
            return self._membership.revocation

    def wait_change(self, timeout_ms: float) -> bool:
        """Wait until assignment or revocation differ from what they were at the last call of this method.

        False: time is over.
        """
        changed = self._client.wait(lambda: self._membership.sequence != self._seen, timeout_ms / 1000)
        with self._client.lock:
            self._seen = self._membership.sequence
        return changed

    def rebalances(self, after: int = 0) -> tuple[Rebalance, ...]:
        """Those that this member has been through, oldest first.

        Args:
            after: Only those with a higher number. Of those, the last 16.
        """
        with self._client.lock:
            return tuple(one for one in self._membership.last_rebalances if one.number > after)

    def group_metadata(self) -> GroupMetadata:
        """This member's place in its group, for `Producer.send_offsets_to_transaction`."""
        with self._client.lock:
            return self._membership.metadata()

    def release(self) -> None:
        """Acknowledge the pending revocation. Does nothing without one."""
        with self._client.lock:
            self._membership.release()
            self._client.wake()

    def subscribe(self, topics: Iterable[str] | None = None, *, pattern: str | None = None) -> None:
        """Change the subscription; the group rebalances."""
        with self._client.lock:
            self._membership.subscribe(Subscription(tuple(topics or ()), pattern))
            self._client.wake()

    def commit(
        self,
        offsets: Mapping[TopicPartition, OffsetAndMetadata | int],
        *,
        generation: int | None = None,
        timeout_ms: float | None = None,
        topic_ids: Mapping[str, UUID] | None = None,
    ) -> None:
        """Commit for the member's generation and wait.

        Args:
            offsets: Next offsets to read, with metadata if wanted.
            generation: Refuse locally unless this is still the generation held, or the partitions have been held ever
                since: a group's generation goes on while members keep theirs. None: whichever is held.
            timeout_ms: None: `default_api_timeout_ms`.
            topic_ids: Of the topics that the offsets belong to; None: those that have the names now.

        Raises:
            CommitFailedError: the generation is over, and a partition was given up since.
            NotFoundError: a topic has gone since; nothing of it was committed.
        """
        values = {
            part: value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
            for part, value in offsets.items()
        }
        with self._client.lock:
            identity = self._membership.identity()
            joined = self._membership.joined
            since = self._membership.held_since
            kept = generation is not None and all(since.get(part, identity.generation) <= generation for part in values)
        if not joined or not (kept or generation in (None, identity.generation)):
            which = "" if generation is None else generation
            text = f"group {self.group_id!r}: generation {which} is over, nothing was committed"
            raise CommitFailedError(text, ErrorCode.ILLEGAL_GENERATION)
        self._client.call(commit_offsets(self._client.cluster, self.group_id, values, identity, timeout_ms, topic_ids))

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """The group's committed offsets; None where there is none."""
        return self._client.call(
            committed_offsets(self._client.cluster, self.group_id, partitions, timeout_ms=timeout_ms)
        )

    def close(self, timeout_ms: float = LEAVE_MS) -> None:
        """Leave the group at once, for at most so long, and end. Does nothing the second time."""
        if self._client.closed:
            return
        until_s = self._client.until_s(timeout_ms)
        try:
            with contextlib.suppress(KafkaError):
                self._client.call(self._membership.leave("the application closed the member", timeout_ms))
        finally:
            self._client.close(until_s)

    def _raise_error(self) -> None:
        with self._client.lock:
            error = self._membership.take_error()
            if error is not None:
                self._client.wake()
                raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _abandon(client: ThreadClient, membership: Membership) -> None:
    """A member that nobody closed: its group need not wait for the session's end."""
    if not client.closed:
        client.abandon(membership.leave("the member was abandoned"))
