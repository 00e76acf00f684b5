"""Requests that wait until all markers of a transaction are written, for some time and in bounded number."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from kohort.errors import ErrorCode

WAIT_S = 5.0
"""How long requests wait for markers that fail.

It is well below clients' request timeouts, and longer than a coordinator loads.
"""
WAITING_MAX = 100
"""Requests that wait for the end of one transaction: more are clients that try again, and are told to do so later."""


@dataclass(frozen=True, slots=True)
class _Wait:
    since_s: float
    ended: Callable[[], None]
    otherwise: Callable[[ErrorCode], None]


class MarkerWaits:
    """Who waits for the ends of transactions, by transactional id."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[_Wait]] = {}
        self._stuck: set[str] = set()

    def add(self, transactional_id: str, ended: Callable[[], None], otherwise: Callable[[ErrorCode], None]) -> None:
        """Wait for a transaction that is ending.

        Args:
            transactional_id: whose transaction.
            ended: called when all markers are there.
            otherwise: called instead when that is not waited for, perhaps before this returns; takes `refusal`.
        """
        waiting = self._waiting.get(transactional_id, [])
        if transactional_id in self._stuck or len(waiting) >= WAITING_MAX:
            otherwise(self.refusal(transactional_id))
            return
        waiting.append(_Wait(time.monotonic(), ended, otherwise))
        self._waiting[transactional_id] = waiting

    def refusal(self, transactional_id: str) -> ErrorCode:
        """What who wants to go on is told while markers are missing: to try again, unless that is of no use."""
        return ErrorCode.UNKNOWN_SERVER_ERROR if transactional_id in self._stuck else ErrorCode.CONCURRENT_TRANSACTIONS

    def failed(self, transactional_id: str, *, stuck: bool) -> None:
        """Some markers could not be written: answer who has waited long.

        Everyone is answered when no later attempt of this process can do it.
        """
        if stuck:
            self._stuck.add(transactional_id)
        before_s = time.monotonic() - (0.0 if stuck else WAIT_S)
        waiting = self._waiting.pop(transactional_id, [])
        left = [each for each in waiting if each.since_s > before_s]
        if left:
            self._waiting[transactional_id] = left
        for each in waiting:
            if each.since_s <= before_s:
                each.otherwise(self.refusal(transactional_id))

    def ended(self, transactional_id: str) -> None:
        """All markers are there: answer everyone who waits."""
        self._stuck.discard(transactional_id)
        for each in self._waiting.pop(transactional_id, ()):
            each.ended()
