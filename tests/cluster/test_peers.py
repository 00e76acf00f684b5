"""Connections between coordinators: whose end counts, and how long who comes back is believed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kohort.cluster.coordination import peers
from kohort.cluster.coordination.peers import Peers
from kohort.cluster.coordination.placement import Candidate, Placement, compute_placement
from kohort.wire.discovery import ApiVersionsRequest
from kohort.wire.framing import decode_request_header
from tests.cluster.coordination_services import until

ME = Candidate(1, "me", "127.0.0.1", 1)


class Listed:
    """A door that says what the test has it say, and keeps who was suspected."""

    def __init__(self) -> None:
        self.placement: Placement | None = None
        self.is_leader = False
        self.suspected: list[Candidate] = []

    def name(self, *candidates: Candidate) -> None:
        self.placement = compute_placement(None, [ME, *candidates], 1, 4)

    def remove_dead_candidate(self, candidate: Candidate) -> None:
        self.suspected.append(candidate)

    def on_changes(self, on_change: Callable[[], None]) -> None: ...
    async def open(self, me: Candidate, shards: int) -> None: ...
    async def hand_over_and_leave(self) -> None: ...
    async def refresh_placement(self) -> None: ...
    def report_loop_alive(self) -> None: ...
    async def close(self) -> None: ...


class Other:
    """Another coordinator's listener, which can end as a process does."""

    def __init__(self) -> None:
        self.open: list[asyncio.StreamWriter] = []
        self.frames: list[bytes] = []
        self.port = 0
        self._server: asyncio.Server | None = None

    async def begin(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.append(writer)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                self.frames.append(await reader.readexactly(size))
        except asyncio.IncompleteReadError:
            writer.close()

    def drop(self) -> None:
        """Ends its connections only."""
        for writer in self.open:
            writer.close()
        self.open.clear()

    def end(self) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()


def run(story: Callable[[Listed, Peers, Other], Awaitable[None]], renew_s: float | None = None) -> None:
    async def play() -> None:
        service, other = Listed(), Other()
        await other.begin()
        watching = Peers(service, ME, renew_s=renew_s)
        try:
            await story(service, watching, other)
        finally:
            await watching.close()
            other.end()

    asyncio.run(play())


@pytest.mark.parametrize("host", ["a..b", "x" * 300, "a\0b", "\ud800", ""], ids=ascii)
def test_host_that_is_no_name_ends_no_watch(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another coordinator advertises it, or whoever may write into the coordinators' group or path."""
    monkeypatch.setattr(peers, "SILENT_AGAIN_S", 0.0)

    async def story(service: Listed, watching: Peers, other: Other) -> None:
        two, three = Candidate(2, "two", host, 1), Candidate(3, "three", "127.0.0.1", other.port)
        service.name(two, three)
        watching.watch_candidates()
        await until(lambda: other.frames, "a first question")
        assert not watching._watched[two].done()
        assert not service.suspected

    run(story)


def test_end_and_refusal_is_suspicion() -> None:
    """A connection that only ends is made again; one that is then refused is the end of the process."""

    async def story(service: Listed, watching: Peers, other: Other) -> None:
        two = Candidate(2, "two", "127.0.0.1", other.port)
        service.name(two)
        watching.watch_candidates()
        assert watching.watched == {2}
        await until(lambda: other.frames, "a first question")
        header, _ = decode_request_header(other.frames[0])
        assert header.api_key == ApiVersionsRequest.API_KEY
        other.drop()
        await until(lambda: other.open, "another connection")
        assert not service.suspected
        other.end()
        await until(lambda: service.suspected, "a suspicion")
        assert service.suspected[0] == two

    run(story)


def test_where_clients_log_in_a_connection_is_renewed_before_the_peer_closes_it() -> None:
    """Nothing is sent on it, and the peer need not warn of a client that does not log in."""

    async def story(service: Listed, watching: Peers, other: Other) -> None:
        service.name(Candidate(2, "two", "127.0.0.1", other.port))
        watching.watch_candidates()
        await until(lambda: len(other.open) >= 3, "a third connection")
        await until(lambda: other.open[0].is_closing() and other.open[1].is_closing(), "the end of the first two")
        assert not other.frames
        assert not service.suspected

    run(story, renew_s=0.1)


def test_where_clients_log_in_renewed_connections_clear_earlier_suspicions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection is shorter than the time that clears them: it is the peer's listening that counts."""
    monkeypatch.setattr(peers, "TRUSTED_S", 1.0)

    async def story(service: Listed, watching: Peers, other: Other) -> None:
        two = Candidate(2, "two", "127.0.0.1", other.port)
        watching._history_of(two).suspected = 3
        service.name(two)
        watching.watch_candidates()
        await until(lambda: len(other.open) >= 3, "renewed connections")
        await until(lambda: not watching._history_of(two).suspected, "trust")

    run(story, renew_s=0.05)


def test_a_peer_that_returns_is_suspected_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each suspicion of one process takes twice as long a refusal as the one before; of another, it does not."""
    monkeypatch.setattr(peers, "SUSPICION_DELAY_S", 0.2)

    async def story(service: Listed, watching: Peers, other: Other) -> None:
        two = Candidate(2, "two", "127.0.0.1", other.port)
        loop = asyncio.get_running_loop()
        took: list[float] = []
        for turn in range(4):
            service.name(two)
            watching.watch_candidates()
            await until(lambda: other.open, "a connection")
            other.end()
            ended = loop.time()
            await until(lambda turn=turn: len(service.suspected) > turn, "a suspicion")
            took.append(loop.time() - ended)
            service.name()
            watching.watch_candidates()
            assert not watching.watched
            await other.begin()
        for least, after in zip((0.2, 0.4, 0.8), took[1:], strict=True):
            assert after >= least
        assert (
            watching._history_of(two).suspicion_delay_s
            > watching._history_of(Candidate(2, "anew", "", 0)).suspicion_delay_s
        )

    run(story)


def test_refused_from_the_start() -> None:
    """One that died before we came is suspected too."""

    async def story(service: Listed, watching: Peers, other: Other) -> None:
        other.end()
        service.name(Candidate(2, "two", "127.0.0.1", other.port))
        watching.watch_candidates()
        await until(lambda: service.suspected, "a suspicion")

    run(story)


def test_a_short_pause_is_no_suspicion(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that can't be reached, and does not refuse, is left to its session."""
    tries: list[object] = []

    async def silent(*where: object) -> None:
        tries.append(where)
        raise TimeoutError

    monkeypatch.setattr(asyncio, "open_connection", silent)
    monkeypatch.setattr(peers, "SILENT_AGAIN_S", 0.01)

    async def story(service: Listed, watching: Peers, other: Other) -> None:
        service.name(Candidate(2, "two", "127.0.0.1", other.port))
        watching.watch_candidates()
        await until(lambda: len(tries) > 20, "many tries")
        assert not service.suspected

    run(story)


def test_closed_in_the_turn_in_which_a_connection_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cancel is not lost by that: closing would wait for ever."""
    opened, answers = asyncio.open_connection, asyncio.Event()
    made: list[asyncio.StreamWriter] = []

    async def late(host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await opened(host, port)
        made.append(writer)
        await answers.wait()
        return reader, writer

    monkeypatch.setattr(asyncio, "open_connection", late)

    async def story(service: Listed, watching: Peers, other: Other) -> None:
        service.name(Candidate(2, "two", "127.0.0.1", other.port))
        watching.watch_candidates()
        await until(lambda: made, "a connection")
        answers.set()
        async with asyncio.timeout(5):
            await watching.close()
        made[0].close()

    run(story)
