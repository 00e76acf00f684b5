"""Connections between coordinators, whose end tells sooner than a session that a process has ended.

A coordinator listens for as long as its process lives. So a connection that ends, and that is refused when it is made
again, means that there is no process any more: the door is told, and its shards are taken. Silence means nothing here
(a machine without power, a stopped process): that is for the session.

The suspicion may be wrong: a firewall refuses, too. Who was suspected and comes back as the same process is refused for
longer before it is suspected again, twice as long each time; else two that reach the door, and not each other, would
take each other's shards for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from kohort.cluster.coordination.placement import Candidate
from kohort.cluster.coordination.service import Door
from kohort.wire.discovery import ApiVersionsRequest
from kohort.wire.framing import encode_request

log = logging.getLogger("kohort.cluster")
CONNECT_S = 3.0
AGAIN_S = 0.1
"""Between connections that are refused; the first one after an end is tried at once."""
SILENT_AGAIN_S = 1.0
"""After one that was not answered at all."""
ASK_S = 30.0
"""A connection without requests would be closed as idle, and firewalls forget it."""
UNSEEN_S = 0.5
"""So long one must be refused that was never reached: it may have died before we came, or just now begin."""
BELIEF_S, BELIEF_MAX_S = 1.0, 120.0
"""So long one must be refused that was suspected before; doubled each time."""
TRUSTED_S = 600.0
"""A connection that stood for so long makes earlier suspicions forgotten."""
_REMEMBERED_MAX = 1_000
"""Processes whose return is remembered: more than come and go while one coordinator lives."""
_CHUNK = 65_536
_KEEP_ALIVE = encode_request(ApiVersionsRequest(), 0, 0, "kohort-coordinator")


@dataclass(slots=True)
class _Belief:
    """How long a process must be refused before it is suspected.

    Attributes:
        seen: Whether it was ever reached.
        suspected: How often it was suspected.
    """

    seen: bool = False
    suspected: int = 0

    @property
    def patience_s(self) -> float:
        if self.suspected:
            return min(BELIEF_MAX_S, BELIEF_S * 2.0 ** (self.suspected - 1))
        return 0.0 if self.seen else UNSEEN_S


class Peers:
    """The other coordinators, as their connections tell.

    Call `follow` whenever the door's map changed.
    """

    def __init__(self, door: Door, me: Candidate) -> None:
        """`door`: says who the others are, and is told who is suspected."""
        self._door = door
        self._me = me
        self._watched: dict[Candidate, asyncio.Task[None]] = {}
        self._beliefs: dict[tuple[int, str], _Belief] = {}

    @property
    def watched(self) -> frozenset[int]:
        """The ids of those that are watched."""
        return frozenset(peer.id for peer in self._watched)

    def follow(self) -> None:
        """Watches those that the map names."""
        placement = self._door.placement
        named = () if placement is None else placement.candidates
        others = {one for one in named if one.id != self._me.id}
        for peer in self._watched.keys() - others:
            self._watched.pop(peer).cancel()
        for peer in sorted(others - self._watched.keys(), key=lambda one: one.id):
            task = asyncio.get_running_loop().create_task(self._watch(peer), name=f"peer {peer.id}")
            self._watched[peer] = task

    async def close(self) -> None:
        """Ends all connections."""
        tasks = list(self._watched.values())
        self._watched.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, peer: Candidate) -> None:
        loop = asyncio.get_running_loop()
        belief = self._belief(peer)
        refused_s: float | None = None
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):  # wait_for loses a cancel in the turn of the answer
                    reader, writer = await asyncio.open_connection(peer.host, peer.port)
            except ConnectionRefusedError:
                refused_s = loop.time() if refused_s is None else refused_s
                if loop.time() - refused_s >= belief.patience_s:
                    refused_s = None
                    belief.suspected += 1
                    log.warning("peer %d at %s refuses connections: taken for ended", peer.id, peer.address)
                    self._door.suspect(peer)
                await asyncio.sleep(AGAIN_S)
            except (OSError, TimeoutError):
                refused_s = None
                await asyncio.sleep(SILENT_AGAIN_S)
            else:
                refused_s, belief.seen = None, True
                began_s = loop.time()
                await _until_ended(reader, writer)
                if loop.time() - began_s > TRUSTED_S:
                    belief.suspected = 0
                elif loop.time() - began_s < AGAIN_S:
                    await asyncio.sleep(AGAIN_S)  # one that accepts and closes at once is not asked without a pause

    def _belief(self, peer: Candidate) -> _Belief:
        key = (peer.id, peer.incarnation)
        while key not in self._beliefs and len(self._beliefs) >= _REMEMBERED_MAX:
            del self._beliefs[next(iter(self._beliefs))]
        return self._beliefs.setdefault(key, _Belief())


async def _until_ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the connection ends, a question now and then; what is answered does not count."""

    async def ask() -> None:
        while True:
            writer.write(_KEEP_ALIVE)
            await writer.drain()
            await asyncio.sleep(ASK_S)

    asking = asyncio.ensure_future(ask())
    try:
        with contextlib.suppress(OSError):
            while await reader.read(_CHUNK):
                pass
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
