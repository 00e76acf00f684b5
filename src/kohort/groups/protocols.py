"""The protocols that the coordinator speaks: a third one has its row here."""

from __future__ import annotations

from typing import Final

from kohort.groups.classic.protocol import CLASSIC
from kohort.groups.consumer.protocol import CONSUMER
from kohort.groups.protocol import Row

PROTOCOLS: Final[tuple[Row, ...]] = (CLASSIC, CONSUMER)
"""The first is that of a group that only holds offsets."""
