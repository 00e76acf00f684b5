"""Membership in a consumer group without reading, for an application that fetches by other means or elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping
from typing import Any
from uuid import UUID

from kohort.client.group import join_group
from kohort.client.group.membership import LEAVE_MS, Membership, Subscription
from kohort.client.lookups import LookupMethods
from kohort.client.net.thread_driver import ThreadClient
from kohort.client.offsets import (
    Assignment,
    GroupMetadata,
    OffsetAndMetadata,
    Rebalance,
    Revocation,
    committed_offsets,
)
from kohort.client.settings import ConsumerConfig, client_config
from kohort.errors import KafkaError, TimedOutError
from kohort.ids import TopicPartition
from kohort.io.closing import ClosedOnExit


class GroupMember(LookupMethods, ClosedOnExit):
    """A group member that does not fetch: it joins, holds an assignment, heartbeats and commits offsets.

        member = GroupMember("127.0.0.1:9092", "flights-etl", topics=["flights"], client_id="spark")
        assignment = member.wait_assignment(timeout_ms=30_000)
        ...
        revocation = member.revocation()            # not None: the group revokes partitions
        if revocation and not revocation.lost:
            ...finish processing, commit...
        if revocation:
            member.release()                        # acknowledges; the next assignment follows by itself
        member.close()

    A revocation waits for `release()`; the member heartbeats meanwhile. The limit is the rebalance timeout
    (`max_poll_interval_ms`, in the push protocol the session timeout). After it, the coordinator continues without the
    member: the revocation gets `lost=True`, and commits of the old generation raise CommitFailedError. There is no
    other time limit: the application need not poll.
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
            topics: The topics to subscribe to; or
            pattern: A regular expression for them.
            user_data: Data for the assignor.
            **settings: Settings of `ConsumerConfig`, by either kind of name.
        """
        subscription = Subscription(tuple(topics or ()), pattern, user_data)
        config = client_config(ConsumerConfig, bootstrap_servers, {**settings, "group_id": group_id})
        super().__init__(ThreadClient(config), config)
        self.group_id = group_id
        self._membership = join_group(self._client.cluster, self.config, requires_polling=False)
        self._seen = 0
        self._client.close_when_collected(self, _abandon, self._membership)
        with self._client.lock:
            self._membership.subscribe(subscription)
            self._client.wake()

    def assignment(self) -> Assignment:
        """Return the current assignment: partitions, generation, member id.

        Empty before the first join, and while no partitions are held.
        """
        with self._client.lock:
            return self._membership.assignment

    def wait_assignment(self, timeout_ms: float, *, after_generation: int = -1) -> Assignment:
        """Wait until this member owns an assignment newer than `after_generation`, with no revocation pending.

        Raises:
            TimedOutError: No assignment within the time; names the reason.
            KafkaError: The group can't be joined (not authorized, no common assignor …).
        """
        member = self._membership

        def settled() -> bool:
            settled = member.holds_assignment and member.owns and member.assignment.generation > after_generation
            return member.error is not None or settled

        if not self._client.wait_until(settled, timeout_ms / 1000):
            why = self.why_unassigned()
            raise TimedOutError(f"group {self.group_id!r}: no assignment within {timeout_ms:.0f} ms: {why}")
        self._raise_error()
        return self.assignment()

    def why_unassigned(self) -> str:
        """Return why no assignment is held, for error texts and logs."""
        with self._client.lock:
            member = self._membership
            silent = "the coordinator is silent" if member.lapsed else f"the member is {member.state.value}"
            return self._client.cluster.unreachable_text() or silent

    def owns(self) -> bool:
        """Return whether the assigned partitions may be processed: the coordinator has answered within the lease.

        Always true if the broker has no lease. `kohort.io.processes` describes leases.
        """
        with self._client.lock:
            return self._membership.owns

    def is_in_session(self) -> bool:
        """Return whether the coordinator has answered within the session timeout and the lease, by this clock.

        False means that other members may own the partitions. After a pause of the process, this is known before
        `revocation` reports it.
        """
        with self._client.lock:
            return self._membership.is_in_session(time.monotonic() * 1000)

    def revocation(self) -> Revocation | None:
        """Return the pending revocation, until `release`; None if no revocation is pending.

        Raises:
            KafkaError: The member can't stay in the group (fenced by another with its instance id, not authorized …).
        """
        self._raise_error()
        with self._client.lock:
            return self._membership.revocation

    def wait_change(self, timeout_ms: float) -> bool:
        """Wait until assignment or revocation have changed since the last call of this method.

        Returns:
            False on timeout.
        """
        changed = self._client.wait_until(lambda: self._membership.sequence != self._seen, timeout_ms / 1000)
        with self._client.lock:
            self._seen = self._membership.sequence
        return changed

    def rebalances(self, after: int = 0) -> tuple[Rebalance, ...]:
        """Return this member's rebalances, oldest first.

        Args:
            after: Only rebalances with a higher number. At most the last 16 are kept.
        """
        with self._client.lock:
            return tuple(rebalance for rebalance in self._membership.last_rebalances if rebalance.number > after)

    def group_metadata(self) -> GroupMetadata:
        """Return the group id, generation and member id, for `Producer.send_offsets_to_transaction`."""
        with self._client.lock:
            return self._membership.metadata()

    def release(self) -> None:
        """Acknowledge the pending revocation, if there is one."""
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
        """Commit offsets for the member's generation and wait.

        Args:
            offsets: The next offsets to read, with metadata if wanted.
            generation: Refuse locally unless this is still the current generation, or the partitions were held ever
                since: a group's generation rises while members keep their partitions. None: the current one.
            timeout_ms: None: `default_api_timeout_ms`.
            topic_ids: The topics' ids when the offsets were read; None: the current ids.

        Raises:
            CommitFailedError: The generation is over, and a partition was given up since.
            NotFoundError: A topic was deleted since; none of its offsets were committed.
        """
        values = {
            part: value if isinstance(value, OffsetAndMetadata) else OffsetAndMetadata(value)
            for part, value in offsets.items()
        }
        limit_ms = self.config.default_api_timeout_ms if timeout_ms is None else timeout_ms
        self._client.call(self._membership.commit(values, limit_ms, topic_ids, generation))

    def committed(
        self, partitions: Iterable[TopicPartition], timeout_ms: float | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the group's committed offsets; None for a partition that has none."""
        return self._client.call(
            committed_offsets(self._client.cluster, self.group_id, partitions, timeout_ms=timeout_ms)
        )

    def close(self, timeout_ms: float = LEAVE_MS) -> None:
        """Leave the group at once, within the time limit, and close. Does nothing the second time."""
        if self._client.closed:
            return
        until_s = self._client.deadline_s(timeout_ms)
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


def _abandon(client: ThreadClient, membership: Membership) -> None:
    """Leave the group for a member that nobody closed, so that its group need not wait for the session timeout."""
    if not client.closed:
        client.abandon(membership.leave("the member was abandoned"))
