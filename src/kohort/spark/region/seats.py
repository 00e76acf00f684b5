"""placeholder: the contract's names, until SOURCE's file is merged."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol
from uuid import UUID


@dataclass(frozen=True, slots=True)
class HandedPart:
    topic: str
    topic_id: UUID
    partition: int
    start: int
    handing: int


@dataclass(frozen=True, slots=True)
class Handed:
    version: int
    epoch: int
    generation: int
    parts: tuple[HandedPart, ...]


class Seat(Protocol):
    def held(self, wait_ms: float) -> Handed | None: ...
    def begin(self, version: int, batch: int) -> bool: ...
    def end(self, batch: int) -> None: ...


class Seats:
    def add(self, seat_id: str, seat: Seat) -> None: ...
    def remove(self, seat_id: str) -> None: ...
    def answer(self, query: str, message: dict[str, Any]) -> dict[str, Any]:
        return {}


SEATS = Seats()
