"""The failure detector among coordinators: a refused connection reveals a dead process before its session expires.

A coordinator listens for as long as its process lives. If a connection ends, and a new one is refused, the process is
gone. The coordination service is informed, and others take over its shards. Silence proves nothing here (a machine
without power, a stopped process): that is what the session is for.

A suspicion may be wrong, because a firewall refuses connections too. If a suspected peer comes back as the same
process, it must refuse for longer before the next suspicion, twice as long each time. Otherwise two coordinators that
reach the coordination service, but not each other, would take each other's shards for ever.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass

from kohort.cluster.coordination.placement import Candidate
from kohort.cluster.coordination.service import CoordinationService
from kohort.wire.discovery import ApiVersionsRequest
from kohort.wire.framing import encode_request

log = logging.getLogger("kohort.cluster")
CONNECT_S = 3.0
AGAIN_S = 0.1
"""Pause between refused connections; the first attempt after a connection ended is made at once."""
SILENT_AGAIN_S = 1.0
"""Pause after an attempt without any answer."""
ASK_S = 30.0
"""Interval between requests: an idle connection would be closed, and firewalls would forget it."""
UNSEEN_S = 0.5
"""How long a peer that was never reached must refuse: it may have died earlier, or may just be starting."""
SUSPICION_DELAY_S, SUSPICION_DELAY_MAX_S = 1.0, 120.0
"""How long a peer that was suspected before must refuse: the first and the largest value, doubled each time."""
TRUSTED_S = 600.0
"""A connection that lasted this long, with its renewals by this side, clears earlier suspicions."""
_REMEMBERED_MAX = 1_000
"""Processes to remember: more than come and go while one coordinator lives."""
_CHUNK = 65_536
_KEEP_ALIVE = encode_request(ApiVersionsRequest(), 0, 0, "kohort-coordinator")


@dataclass(slots=True)
class _PeerHistory:
    """The history of one process, which sets how long it must refuse connections before it is suspected.

    Attributes:
        seen: Whether this coordinator has ever reached the process.
        suspected: The number of times that this coordinator has suspected the process.
    """

    seen: bool = False
    suspected: int = 0

    @property
    def suspicion_delay_s(self) -> float:
        if self.suspected:
            return min(SUSPICION_DELAY_MAX_S, SUSPICION_DELAY_S * 2.0 ** (self.suspected - 1))
        return 0.0 if self.seen else UNSEEN_S


class Peers:
    """The other coordinators, each watched through a connection.

    Call `watch_candidates` whenever the placement has changed.
    """

    def __init__(self, coordination: CoordinationService, me: Candidate, *, renew_s: float | None = None) -> None:
        """Watch the candidates in the placement of `coordination`, and report suspected ones to it.

        Args:
            coordination: the coordination service.
            me: this process.
            renew_s: after this many seconds a watching connection is closed and made again; None: never. Needed where
                clients use TLS or log in: the connection does neither, and the peer would close it at its login
                deadline.
        """
        self._coordination = coordination
        self._me = me
        self._renew_s = renew_s
        self._watched: dict[Candidate, asyncio.Task[None]] = {}
        self._histories: dict[tuple[int, str], _PeerHistory] = {}

    @property
    def watched(self) -> frozenset[int]:
        """The ids of the watched peers."""
        return frozenset(peer.id for peer in self._watched)

    def watch_candidates(self) -> None:
        """Watch the candidates that the placement names now."""
        placement = self._coordination.placement
        named = () if placement is None else placement.candidates
        others = {candidate for candidate in named if candidate.id != self._me.id}
        for peer in self._watched.keys() - others:
            self._watched.pop(peer).cancel()
        for peer in sorted(others - self._watched.keys(), key=lambda candidate: candidate.id):
            task = asyncio.get_running_loop().create_task(self._watch(peer), name=f"peer {peer.id}")
            self._watched[peer] = task

    async def close(self) -> None:
        """Close the connections to all watched peers."""
        tasks = list(self._watched.values())
        self._watched.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _watch(self, peer: Candidate) -> None:
        loop = asyncio.get_running_loop()
        belief = self._history_of(peer)
        refused_s: float | None = None
        began_s: float | None = None
        while True:
            try:
                async with asyncio.timeout(CONNECT_S):  # wait_for loses a cancel in the turn of the answer
                    reader, writer = await asyncio.open_connection(peer.host, peer.port)
            except ConnectionRefusedError:
                refused_s, began_s = loop.time() if refused_s is None else refused_s, None
                if loop.time() - refused_s >= belief.suspicion_delay_s:
                    refused_s = None
                    belief.suspected += 1
                    log.warning(
                        "coordinator %d at %s is suspected: it refuses connections, so its groups move to others",
                        peer.id,
                        peer.address,
                    )
                    self._coordination.remove_dead_candidate(peer)
                await asyncio.sleep(AGAIN_S)
            except (OSError, TimeoutError, ValueError):  # ValueError: the host can't be a name
                refused_s = began_s = None
                await asyncio.sleep(SILENT_AGAIN_S)
            else:
                refused_s, belief.seen = None, True
                connected_s = loop.time()
                began_s = connected_s if began_s is None else began_s
                renewed = await _until_ended(reader, writer, self._renew_s)
                if loop.time() - began_s > TRUSTED_S:
                    belief.suspected = 0
                if not renewed:
                    began_s = None
                if loop.time() - connected_s < AGAIN_S:
                    await asyncio.sleep(AGAIN_S)  # no busy loop with a peer that accepts and closes at once

    def _history_of(self, peer: Candidate) -> _PeerHistory:
        key = (peer.id, peer.incarnation)
        while key not in self._histories and len(self._histories) >= _REMEMBERED_MAX:
            del self._histories[next(iter(self._histories))]
        return self._histories.setdefault(key, _PeerHistory())


async def _until_ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, renew_s: float | None) -> bool:
    """Wait until the peer ends the connection, discarding the responses that arrive on it.

    Close it after `renew_s` seconds. Without `renew_s`, send a keep-alive request every `ASK_S` seconds.

    Returns:
        Whether this side closed it, to make it again.
    """

    async def send_keep_alives() -> None:
        while renew_s is None:
            writer.write(_KEEP_ALIVE)
            await writer.drain()
            await asyncio.sleep(ASK_S)

    asking = asyncio.ensure_future(send_keep_alives())
    renewal = asyncio.timeout(renew_s)
    try:
        with contextlib.suppress(OSError, TimeoutError):
            async with renewal:
                while await reader.read(_CHUNK):
                    pass
    finally:
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return renewal.expired()
