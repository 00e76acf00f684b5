"""What the broker knows of the client at the other end of a connection."""

from __future__ import annotations

from typing import NamedTuple

from kohort.broker.waits import Wait
from kohort.groups.liveness.patience import Patience, classic_hold_ms, patience
from kohort.lease import beat_ms, hold_max_ms
from kohort.processes import NAME_MAX_LENGTH

OWN_SOFTWARE = "kohort"
"""What our own clients name themselves in ApiVersions."""


class Principal(NamedTuple):
    """Who a client is, by its authentication."""

    kind: str
    name: str


ANYONE = Principal("User", "ANONYMOUS")
"""Who a client is that did not authenticate."""


class ClientSession:
    """One client, from its connection's beginning to its end.

    Attributes:
        number: tells connections apart, in events of the group coordinator too.
        host: the client's address.
        principal: who it is; requests keep the one that they came under.
        software: name and version that it gave in ApiVersions 3 and up.
        lease_ms: the lease that it was told to keep, 0: none.
        process: what it says of its process, "": nothing. See `kohort.processes`.
        client_id: as the header of ApiVersions had it; frames of the push protocol have none.
        shards: the group shards that it has asked, to be told of its end.
        held: heartbeats whose answers a shard may hold back, token to shard: the next request releases them.
        waits: its parked fetches.
    """

    __slots__ = (
        "client_id", "held", "host", "lease_ms", "number", "principal", "process", "shards", "software", "waits",
    )  # fmt: skip

    def __init__(self, number: int, host: str) -> None:
        self.number = number
        self.host = host
        self.principal = ANYONE
        self.software: tuple[str, str] | None = None
        self.lease_ms = 0
        self.process = self.client_id = ""
        self.shards: set[int] = set()
        self.held: dict[int, int] = {}
        self.waits: set[Wait] = set()

    def introduce(self, name: str, version: str, process: str) -> None:
        """The client says what it is, and which process."""
        self.software = (name, version)
        self.process = process[: NAME_MAX_LENGTH + 1]

    @property
    def is_own(self) -> bool:
        """Whether it is kohort's own client."""
        return self.software is not None and self.software[0] == OWN_SOFTWARE

    @property
    def interval_ms(self) -> int:
        """At which interval it is known to send classic heartbeats, 0: not known."""
        return beat_ms(self.lease_ms)

    def classic_hold_ms(self, mode: str) -> int:
        """How long it bears to wait for the answer to a classic heartbeat. `mode`: `group.notify.at.once`."""
        return 0 if self._is_new else self._within_lease(classic_hold_ms(mode, self.software and self.software[0]))

    def patience(self, mode: str) -> Patience:
        """How it bears to wait for the answer to the heartbeat of a consumer group's member; arguments as above."""
        found = patience(mode, self.software and self.software[0])
        return found._replace(hold_ms=0 if self._is_new else self._within_lease(found.hold_ms))

    @property
    def _is_new(self) -> bool:
        """Whether nothing of a group has come yet: who comes back on a new connection has waited for an answer."""
        return not self.shards

    def _within_lease(self, hold_ms: int) -> int:
        return min(hold_ms, hold_max_ms(self.lease_ms)) if self.lease_ms else hold_ms
