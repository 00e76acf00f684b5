"""The protocols that the coordinator speaks: another one has its row here."""

from __future__ import annotations

from typing import Final

from kohort.groups.classic.protocol import CLASSIC
from kohort.groups.consumer.protocol import CONSUMER
from kohort.groups.protocol import Row
from kohort.groups.push.protocol import PUSH

PROTOCOLS: Final[tuple[Row, ...]] = (CLASSIC, CONSUMER, PUSH)
"""The first is that of a group that only holds offsets."""
