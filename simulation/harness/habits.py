"""The habits of a simulated client, which its plan draws."""

from __future__ import annotations

from dataclasses import dataclass

from simulation.harness.assigning import EAGER


@dataclass(frozen=True)
class Habits:
    """The configuration and habits of one simulated client.

    Attributes:
        assignor, rack: the server-side assignor that it asks for, and its rack.
        keeps_lease: it is one of kohort's own clients, which keep the lease that a response names.
        clock_rate: the speed of its clock relative to the coordinator's.
        consumer_id: a push member's id that another process uses too; None: an id of its own.
        auto_commit: a push member's answers to Pings carry its positions; otherwise it commits by requests.
        streams: of a push member; from 2 on it subscribes by an expression.
        reading_ms: the maximum time between a push member's taking of a frame and its next reading of the clock.
        never_stops: a push member answers no Stop.
        finds_starts: a push member chooses its start position in partitions without a committed offset.
    """

    group_id: str
    topics: tuple[str, ...]
    strategies: tuple[str, ...] = (EAGER,)
    instance_id: str | None = None
    session_timeout_ms: int = 6_000
    rebalance_timeout_ms: int = 25_000
    heartbeat_ms: int = 1_500
    commit_ms: int = 1_000
    callback_ms: int = 50
    requires_known_id: bool = True
    commits_on_revocation: bool = True
    require_stable: bool = False
    delay_ms: int = 0
    short_interval: bool = False
    assignor: str | None = None
    rack: str | None = None
    keeps_lease: bool = False
    clock_rate: float = 1.0
    consumer_id: str | None = None
    auto_commit: bool = True
    streams: int = 0
    reading_ms: int = 0
    never_stops: bool = False
    finds_starts: bool = False
