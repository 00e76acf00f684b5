"""The transaction coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kohort.broker.node import Node


class Transactions:
    """Every transactional id of this broker."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def start(self) -> None:
        """Load what the transaction log holds."""

    def check_produce(self, transactional_id: str, topic: str, partition: int, records: Any, version: int) -> None:
        """Whether a transaction may write here."""

    def close(self) -> None:
        """Stop."""
