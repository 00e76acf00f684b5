"""Names of things in the simulated region."""

from __future__ import annotations

from uuid import UUID

from kohort.region.parts import Part

REGION, REGION_ID = "flights", UUID(int=7)
GROUP, TOPIC, TOPIC_ID = "etl", "t", UUID(int=9)


def part(number: int) -> Part:
    """A partition of the group's topic."""
    return Part(GROUP, TOPIC, number, TOPIC_ID)
