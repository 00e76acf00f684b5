"""A connection that turns round: the server's frames find it by its number, the client's are answers, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from kohort.broker.config.settings import BrokerConfig
from kohort.broker.framing import BadFrame, Frame
from kohort.broker.security.listener_socket import bind_socket
from kohort.broker.server.connection import ClientSession, Connection
from kohort.broker.server.listener import Server
from kohort.broker.server.server_requests import UNANSWERED_MAX, ServerRequests
from kohort.broker.transport import Parts
from kohort.errors import KafkaError
from tests.broker.test_framing import framed

REGISTER = b"register"
WAIT_S = 20.0


class Answer:
    """The response owed for a request."""

    def __init__(self) -> None:
        self.parts: Parts | None = None


class Turning:
    """A server that turns a connection on which `register` comes; other requests are answered when the test says so."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.server = Server(self.loop, BrokerConfig(), 10, self.on_frame, self.on_closed)
        self.address = self.server.listen(bind_socket("127.0.0.1", 0))
        self.owed: list[tuple[Connection, Answer]] = []
        self.turned: dict[int, ServerRequests] = {}
        self.closed: list[int] = []
        self.happened = asyncio.Event()

    def on_frame(self, connection: Connection, frame: Frame) -> None:
        answer = Answer()
        connection.pending.append(answer)
        self.owed.append((connection, answer))
        if bytes(frame) == REGISTER:
            self.turned[connection.client.number] = connection.reverse_direction()
        self.happened.set()

    def on_closed(self, client: ClientSession) -> None:
        self.closed.append(client.number)
        self.happened.set()

    def answer(self, number: int, body: bytes) -> None:
        connection, answer = self.owed[number]
        answer.parts = [framed(body)]
        connection.send_when_next(answer)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(WAIT_S):
            while not condition():
                self.happened.clear()
                await self.happened.wait()


class Client:
    """The other end."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def frame(self) -> bytes:
        async with asyncio.timeout(WAIT_S):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return await self.reader.readexactly(size)


def play(script: Callable[[Turning, Client], Awaitable[None]]) -> None:
    """A script with a server and one client."""

    async def run() -> None:
        turning = Turning()
        reader, writer = await asyncio.open_connection(*turning.address)
        try:
            await script(turning, Client(reader, writer))
        finally:
            writer.close()
            await writer.wait_closed()
            turning.server.close()

    asyncio.run(run())


def test_frames_out_are_answered_in_order_and_of_any_size() -> None:
    async def script(turning: Turning, client: Client) -> None:
        client.writer.write(framed(REGISTER))
        await turning.until(lambda: bool(turning.turned))
        ((number, turned),) = turning.turned.items()
        assert turning.server.find_connection(number) is turning.owed[0][0]
        turning.answer(0, b"registered")
        got: list[tuple[str, bytes]] = []

        def take(name: str) -> Callable[[Frame], None]:
            def on_answer(frame: Frame) -> None:
                got.append((name, bytes(frame)))
                turning.happened.set()

            return on_answer

        turned.ask([framed(b"ping")], take("ping"))
        turned.ask([framed(b"stop")], take("stop"))
        assert [await client.frame() for _ in range(3)] == [b"registered", b"ping", b"stop"]
        assert turned.unanswered == 2
        client.writer.write(framed(b"", b"ok"))
        await turning.until(lambda: len(got) == 2)
        assert got == [("ping", b""), ("stop", b"ok")]
        assert turned.unanswered == 0

    play(script)


def test_what_is_owed_leaves_before_what_is_asked() -> None:
    """The server may ask while the answer that turned the connection waits for its record to be durable."""

    async def script(turning: Turning, client: Client) -> None:
        client.writer.write(framed(b"an earlier", REGISTER))
        await turning.until(lambda: bool(turning.turned))
        (turned,) = turning.turned.values()
        turned.ask([framed(b"ping")], lambda _: None)
        turning.answer(1, b"registered")
        turning.answer(0, b"earlier")
        assert [await client.frame() for _ in range(3)] == [b"earlier", b"registered", b"ping"]

    play(script)


def test_frames_behind_the_one_that_turns_it_are_answers_too() -> None:
    """The frames came in the same read. None was requested, so the connection closes and is forgotten."""

    async def script(turning: Turning, client: Client) -> None:
        client.writer.write(framed(REGISTER, b"x"))
        await turning.until(lambda: bool(turning.closed))
        assert len(turning.owed) == 1
        (number,) = turning.turned
        assert turning.closed == [number]
        assert turning.server.find_connection(number) is None

    play(script)


def test_a_client_that_never_answers_is_not_asked_without_bound() -> None:
    sent: list[Parts] = []
    turned = ServerRequests(sent.append)
    for _ in range(UNANSWERED_MAX):
        turned.ask([b""], lambda _: None)
    with pytest.raises(KafkaError, match="not answered"):
        turned.ask([b""], lambda _: None)
    assert len(sent) == UNANSWERED_MAX
    turned.handle_response(memoryview(b""))
    turned.ask([b""], lambda _: None)
    assert turned.unanswered == UNANSWERED_MAX


def test_an_answer_to_nothing_is_refused() -> None:
    with pytest.raises(BadFrame, match="nothing that was asked"):
        ServerRequests(lambda _: None).handle_response(memoryview(b"abc"))


def test_a_size_is_bounded_as_before() -> None:
    async def script(turning: Turning, client: Client) -> None:
        client.writer.write(framed(REGISTER))
        await turning.until(lambda: bool(turning.turned))
        client.writer.write((-1).to_bytes(4, "big", signed=True))
        await turning.until(lambda: bool(turning.closed))

    play(script)
