"""Where coordinators find each other: what a place of election and registration offers, whichever it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from kohort.cluster.coordination.placement import Candidate, Placement


class Door(Protocol):
    """The one way in: a candidate registers, one is elected, and all read one map.

    Use it from the loop on which it was opened. A door is not trusted for safety: what it says decides where groups are
    looked for, and the journal decides who may answer for them.
    """

    @property
    def placement(self) -> Placement | None:
        """The map as the door says it now; a lower version than before is what counts, too.

        It stays while the door can't be asked. None: there is none yet. Where another process took this candidate's id,
        the map names that one's incarnation.
        """

    @property
    def in_office(self) -> bool:
        """Whether this process is the elected one, as far as it knows."""

    def listen(self, on_change: Callable[[], None]) -> None:
        """Has `on_change` called on the loop after `placement` or `in_office` changed."""

    async def open(self, me: Candidate, shards: int) -> None:
        """Registers; returns once this candidate has a place and, where someone is in office, a map.

        Clients must be able to reach the candidate before: peers take a refused connection for its end.

        Raises:
            KafkaError: the door can't be reached, may not be used, or the id is another's; says what to do.
        """

    def suspect(self, candidate: Candidate) -> None:
        """Its process is thought to have ended: its shards are taken without waiting for its session."""

    async def retire(self) -> None:
        """A clean stop: has its shards given to others first, and leaves once the map says so."""

    async def ask(self) -> None:
        """Returns once `placement` is what the door says when asked from now on; waits for as long as it is away."""

    def alive(self) -> None:
        """The loop turns. To be called several times a second: a loop that hangs loses its place."""

    async def close(self) -> None:
        """Leaves at once. Does nothing the second time."""
