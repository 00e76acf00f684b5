"""The channel between an application and its sources, without Spark."""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.support.waiting import until

from kohort.io import channel as frames
from kohort.io.channel import FRAME_BYTES_MAX, NONCE_BYTES, PROOF_BYTES, FrameParser, Link, frame, proof
from kohort.spark import driver_channel
from kohort.spark.driver_channel import LOOPBACK, Contact, Line, Message, Switchboard, decode, encode


@pytest.fixture
def closing() -> Iterator[Callable[[Any], Any]]:
    """Closes what it is given, in the end."""
    every: list[Any] = []

    def keep(one: Any) -> Any:
        every.append(one)
        return one

    yield keep
    for resource in reversed(every):
        resource.close()


class Heard:
    """A line's handlers: what came, in order."""

    def __init__(self) -> None:
        self.messages: queue.Queue[Message] = queue.Queue()
        self.handlers = {"done": self.messages.put}

    def next(self) -> Message:
        return self.messages.get(timeout=60)


def test_messages_come_whole_from_any_pieces() -> None:
    said = [{"kind": "done", "end": "é" * 300}, {"kind": "over"}, {"kind": "done", "end": ""}]
    data = b"".join(frame(encode(message)) for message in said)
    for size in (1, 3, 7, 1000, len(data)):
        reading = FrameParser()
        found = [entry for at in range(0, len(data), size) for entry in reading.feed(data[at : at + size])]
        assert list(map(decode, found)) == said


@pytest.mark.parametrize(
    "data",
    [
        (FRAME_BYTES_MAX + 1).to_bytes(4, "big"),
        b"GET / HTTP/1.1\r\n",
        b"\0\0\0\2[]",
        b"\0\0\0\2{}",
        b'\0\0\0\x0a{"kind":1}',
        b"\0\0\0\1{",
        b"\0\0\0\1\xff",
    ],
)
def test_what_is_no_message_is_refused_before_it_is_kept(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"message|JSON|Expecting|decode"):
        list(map(decode, FrameParser().feed(data)))


def test_a_message_longer_than_a_frame_is_refused_by_its_sender() -> None:
    with pytest.raises(ValueError, match="longer than"):
        frame(b"x" * (FRAME_BYTES_MAX + 1))


def test_a_line_that_was_closed_before_it_is_read_has_nothing_to_say() -> None:
    with socket.create_server((LOOPBACK, 0)) as server:
        link = Link(socket.create_connection(server.getsockname()))
    link.close()
    assert list(link.bodies(1.0)) == []


def test_the_token_is_in_no_printout() -> None:
    contact = Contact(1234, b"secret-bytes")
    assert "secret" not in f"{contact!r} {contact} {[contact]}"


def test_messages_go_both_ways_and_each_query_has_its_own(closing: Callable[[Any], Any]) -> None:
    asked: queue.Queue[tuple[str, Message]] = queue.Queue()
    board = closing(Switchboard(handlers={"asks": lambda query, message: asked.put((query, message))}))
    heard = {name: Heard() for name in ("one", "two")}
    lines = {name: closing(Line(board.contact, heard[name].handlers)) for name in heard}
    for name, line in lines.items():
        line.drives(name)
        line.start()
    until(lambda: board.queries() == {"one", "two"}, "both are connected")
    assert board.tell("one", {"kind": "done", "end": "1"}) == 1
    assert board.tell("two", {"kind": "done", "end": "2"}) == 1
    assert board.tell("nobody", {"kind": "done", "end": "3"}) == 0
    assert heard["one"].next() == {"kind": "done", "end": "1"}
    assert heard["two"].next() == {"kind": "done", "end": "2"}
    assert lines["two"].send({"kind": "asks", "what": 7})
    assert asked.get(timeout=60) == ("two", {"kind": "asks", "what": 7, "query": "two"})
    assert board.tell("one", {"kind": "a kind of later"}) == 1
    assert board.tell("one", {"kind": "done", "end": "4"}) == 1
    assert heard["one"].next()["end"] == "4", "a kind that is not known is passed over"


def test_a_source_learns_late_which_query_it_drives_and_hears_what_was_said_before(
    closing: Callable[[Any], Any],
) -> None:
    board = closing(Switchboard(lambda query: {"kind": "done", "end": f"last of {query}"}))
    heard = Heard()
    line = closing(Line(board.contact, heard.handlers))
    line.start()
    line.drives("first")
    assert heard.next()["end"] == "last of first"
    line.drives("second")
    assert heard.next()["end"] == "last of second"
    until(lambda: board.queries() == {"second"}, "it drives one query")


def test_a_line_that_breaks_is_made_again(closing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_channel, "RECONNECT_DELAY_S", 0.01)
    board = closing(Switchboard())
    lost = threading.Event()
    line = closing(Line(board.contact, Heard().handlers, lost.set))
    line.drives("one")
    line.start()
    until(lambda: board.queries() == {"one"}, "it is connected")
    assert line.connected
    with board._lock:
        links = list(board._links["one"])
    links[0].close()
    assert lost.wait(60)
    until(lambda: line.connected and board.tell("one", {"kind": "over"}) == 1, "it is connected again")


def test_when_the_application_is_gone_nothing_hangs(closing: Callable[[Any], Any]) -> None:
    board = Switchboard()
    line = closing(Line(board.contact, Heard().handlers))
    line.drives("one")
    line.start()
    until(lambda: board.queries() == {"one"}, "it is connected")
    board.close()
    until(lambda: not line.connected, "it knows that the application is gone")
    assert not line.send({"kind": "asks"})
    line.close()
    line._thread.join(60)
    assert not line._thread.is_alive()


def test_a_source_with_another_token_is_told_nothing(closing: Callable[[Any], Any]) -> None:
    told: list[str] = []
    board = closing(Switchboard(told.append))  # type: ignore[arg-type]
    sock = closing(socket.create_connection((LOOPBACK, board.contact.port), 60))
    nonce = sock.recv(NONCE_BYTES)
    mine = bytes(NONCE_BYTES)
    sock.sendall(mine + proof(bytes(32), "caller", nonce + mine) + frame(encode({"kind": "drives", "query": "one"})))
    with contextlib.suppress(ConnectionResetError):  # where it did not read all of ours
        assert sock.recv(1) == b"", "it hangs up, without its own proof"
    assert told == [] and board.queries() == set()


def test_who_listens_on_the_port_and_is_not_the_application_learns_no_token(closing: Callable[[Any], Any]) -> None:
    """Another program may have the port by now, or on another machine."""
    listening = closing(socket.create_server((LOOPBACK, 0)))
    contact = Contact(listening.getsockname()[1], b"t" * 32)
    line = closing(Line(contact, Heard().handlers))
    line.drives("one")
    line.start()
    sock = closing(listening.accept()[0])
    sock.settimeout(60)
    sock.sendall(bytes(NONCE_BYTES))
    said = b""
    while len(said) < NONCE_BYTES + PROOF_BYTES:
        said += sock.recv(1000)
    assert contact.token not in said
    sock.sendall(said[NONCE_BYTES:])  # its own proof, played back
    assert sock.recv(1000) == b"", "it hangs up"
    assert not line.connected


def test_one_that_is_silent_holds_nobody_up(closing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "GREETING_S", 0.2)
    board = closing(Switchboard())
    silent = closing(socket.create_connection((LOOPBACK, board.contact.port), 60))
    assert len(silent.recv(NONCE_BYTES)) == NONCE_BYTES
    monkeypatch.undo()
    line = closing(Line(board.contact, Heard().handlers))
    line.drives("one")
    line.start()
    until(lambda: board.queries() == {"one"}, "another is served meanwhile")
    assert silent.recv(1) == b"", "its time is over"
    until(lambda: len(board._sockets) == 1, "nothing is kept of it")


def test_there_is_a_most_of_connections(closing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_channel, "SOURCES_MAX", 2)
    board = closing(Switchboard())
    for name in ("one", "two"):
        line = closing(Line(board.contact, Heard().handlers))
        line.drives(name)
        line.start()
    until(lambda: len(board.queries()) == 2, "as many as there may be")
    third = closing(socket.create_connection((LOOPBACK, board.contact.port), 60))
    assert third.recv(1) == b""


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_no_part_in_it(closing: Callable[[Any], Any]) -> None:
    board = closing(Switchboard())
    line = closing(Line(board.contact, Heard().handlers))
    line.drives("one")
    line.start()
    until(lambda: board.queries() == {"one"}, "it is connected")
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        sockets = [board._listening, *board._sockets]
        closed = all(sock.fileno() == -1 for sock in sockets) and not line.connected
        os.write(write, b"y" if closed else b"n")
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 1) == b"y"
    os.close(read), os.close(write)
    assert board.tell("one", {"kind": "over"}) == 1, "the parent's connections go on"


def test_contacts_of_two_switchboards_differ(closing: Callable[[Any], Any]) -> None:
    one, two = closing(Switchboard()), closing(Switchboard())
    assert one.contact.token != two.contact.token
    stranger = closing(Line(replace(one.contact, token=two.contact.token), Heard().handlers))
    stranger.drives("one")
    stranger.start()
    until(lambda: stranger._logged, "it is refused")
    assert one.queries() == set()
