"""How a region behaves. All times in ms."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RegionConfig:
    """Knobs of a control plane.

    Attributes:
        checkpoint_every_ms: between two cuts; None: members or persons ask for them.
        register_ms: so long after a takeover, and after its connection ended, a member may take to register again.
        drain_ms: so long a cut may take from its beginning until all have contributed: a member's longest piece of
            work, with room. Below `max.poll.interval.ms`, so that a cut ends before the group loses patience.
        reset_ms: so long an attempt at a reset may take.
        resets_most: so many in a row stop the region; forced ones and those before a complete sequence don't count.
        lone_sequences: a partition that a stable group has given to nobody of the region for so many sequences is
            looked after.
    """

    checkpoint_every_ms: int | None = 5_000
    register_ms: int = 10_000
    drain_ms: int = 180_000
    reset_ms: int = 60_000
    resets_most: int = 5
    lone_sequences: int = 3
