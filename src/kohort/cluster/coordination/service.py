"""The coordination service: registration, leader election and the shared placement, on ZooKeeper or on Kafka."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kohort.cluster.coordination.placement import Candidate, Placement


class CoordinationService(Protocol):
    """The service through which candidates register, elect a leader and read one placement.

    Use it from the loop on which it was opened. It is not trusted for safety: the placement decides where clients look
    for groups, and the journal decides which coordinator may answer for them.
    """

    @property
    def placement(self) -> Placement | None:
        """The current placement; None: there is none yet. It counts even if its version is lower than before.

        It stays while the service is unavailable. If another process has taken this candidate's id, the placement names
        the incarnation of that process.
        """

    @property
    def is_leader(self) -> bool:
        """Whether this process is the elected leader, as far as it knows; the leader computes the placement."""

    def on_changes(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` on the loop after `placement` or `is_leader` changed."""

    async def open(self, me: Candidate, shards: int) -> None:
        """Register; return once this candidate is registered and, where there is a leader, has a placement.

        The candidate must accept connections already: peers suspect a candidate that refuses them.

        Raises:
            KafkaError: the service can't be reached, may not be used, or the id is taken; the message says what to do.
        """

    def remove_dead_candidate(self, candidate: Candidate) -> None:
        """Unregister a candidate whose process seems to have ended, without waiting for its session to expire."""

    async def hand_over_and_leave(self) -> None:
        """Stop cleanly: hand the shards over to others, and unregister once the placement says so."""

    async def refresh_placement(self) -> None:
        """Refresh `placement` from the service; wait for as long as the service is unavailable."""

    def report_loop_alive(self) -> None:
        """Report that the event loop is alive. Call this several times a second: a hanging loop loses its session."""

    async def close(self) -> None:
        """Unregister at once. A second call does nothing."""
