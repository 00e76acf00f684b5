"""Names of things in the simulated region."""

from __future__ import annotations

from uuid import UUID

from kohort.region.records import Part
from kohort.region.region_key import RegionKey

REGION, REGION_ID = "flights", UUID(int=7)
KEY = RegionKey(b"k" * 32, "the world")
GROUP, TOPIC, TOPIC_ID = "etl", "t", UUID(int=9)


def part(number: int) -> Part:
    """A partition of the group's topic."""
    return Part(GROUP, TOPIC, number, TOPIC_ID)
