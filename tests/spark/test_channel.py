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
from kohort.io import connection_gate
from kohort.io.channel import NONCE_BYTES, PROOF_BYTES, LinkFrames, token_proof
from kohort.spark import driver_channel
from kohort.spark.driver_channel import (
    LOOPBACK,
    ChannelAddress,
    ChannelClient,
    ChannelServer,
    Message,
    decode_message,
    encode_message,
)


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


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"kind":1}', b"{", b"\xff"])
def test_what_is_no_message_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"message|JSON|Expecting|decode"):
        decode_message(body)


def test_the_token_is_in_no_printout() -> None:
    contact = ChannelAddress(1234, b"secret-bytes")
    assert "secret" not in f"{contact!r} {contact} {[contact]}"


def test_messages_go_both_ways_and_each_query_has_its_own(closing: Callable[[Any], Any]) -> None:
    asked: queue.Queue[tuple[str, Message]] = queue.Queue()
    board = closing(ChannelServer(handlers={"asks": lambda query, message: asked.put((query, message))}))
    heard = {name: Heard() for name in ("one", "two")}
    lines = {name: closing(ChannelClient(board.address, heard[name].handlers)) for name in heard}
    for name, line in lines.items():
        line.announce_query(name)
        line.start()
    until(lambda: board.queries() == {"one", "two"}, "both are connected")
    assert board.send_message("one", {"kind": "done", "end": "1"}) == 1
    assert board.send_message("two", {"kind": "done", "end": "2"}) == 1
    assert board.send_message("nobody", {"kind": "done", "end": "3"}) == 0
    assert heard["one"].next() == {"kind": "done", "end": "1"}
    assert heard["two"].next() == {"kind": "done", "end": "2"}
    assert lines["two"].send({"kind": "asks", "what": 7})
    assert asked.get(timeout=60) == ("two", {"kind": "asks", "what": 7, "query": "two"})
    assert board.send_message("one", {"kind": "a kind of later"}) == 1
    assert board.send_message("one", {"kind": "done", "end": "4"}) == 1
    assert heard["one"].next()["end"] == "4", "a kind that is not known is passed over"


def test_a_source_learns_late_which_query_it_drives_and_hears_what_was_said_before(
    closing: Callable[[Any], Any],
) -> None:
    board = closing(ChannelServer(lambda query: {"kind": "done", "end": f"last of {query}"}))
    heard = Heard()
    line = closing(ChannelClient(board.address, heard.handlers))
    line.start()
    line.announce_query("first")
    assert heard.next()["end"] == "last of first"
    line.announce_query("second")
    assert heard.next()["end"] == "last of second"
    until(lambda: board.queries() == {"second"}, "it drives one query")


def test_a_line_that_breaks_is_made_again(closing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_channel, "RECONNECT_DELAY_S", 0.01)
    board = closing(ChannelServer())
    lost = threading.Event()
    line = closing(ChannelClient(board.address, Heard().handlers, lost.set))
    line.announce_query("one")
    line.start()
    until(lambda: board.queries() == {"one"}, "it is connected")
    assert line.connected
    with board._lock:
        links = list(board._links["one"])
    links[0].close()
    assert lost.wait(60)
    until(lambda: line.connected and board.send_message("one", {"kind": "over"}) == 1, "it is connected again")


def test_source_whose_handler_fails_connects_again(
    closing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver_channel, "RECONNECT_DELAY_S", 0.01)
    board = closing(ChannelServer())
    heard = Heard()

    def fail(message: Message) -> None:
        raise RuntimeError("a bug")

    line = closing(ChannelClient(board.address, heard.handlers | {"over": fail}))
    line.announce_query("one")
    line.start()
    until(lambda: board.send_message("one", {"kind": "over"}) == 1, "the failing handler has its message")
    until(lambda: "a bug" in caplog.text, "the failure is logged")
    until(lambda: board.send_message("one", {"kind": "done", "end": "1"}) and not heard.messages.empty(), "it goes on")


def test_source_that_gets_no_thread_connects_when_there_is_one(
    closing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The process has all the threads that it may have, for a while."""
    monkeypatch.setattr(driver_channel, "RECONNECT_DELAY_S", 0.01)
    board = closing(ChannelServer())
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "kohort-channel-link":
            raise RuntimeError("can't start new thread")
        start(thread)

    line = closing(ChannelClient(board.address, Heard().handlers))
    line.announce_query("one")
    with monkeypatch.context() as full:
        full.setattr(threading.Thread, "start", refuse)
        line.start()
        until(lambda: "can't start new thread" in caplog.text, "it is refused")
    until(lambda: board.queries() == {"one"}, "it is connected")


def test_when_the_application_is_gone_nothing_hangs(closing: Callable[[Any], Any]) -> None:
    board = ChannelServer()
    line = closing(ChannelClient(board.address, Heard().handlers))
    line.announce_query("one")
    line.start()
    until(lambda: board.queries() == {"one"}, "it is connected")
    board.close()
    until(lambda: not line.connected, "it knows that the application is gone")
    assert not line.send({"kind": "asks"})
    line.close()
    line._thread.join(60)
    assert not line._thread.is_alive()


def test_a_source_with_another_token_gets_no_answer(closing: Callable[[Any], Any]) -> None:
    reported: list[str] = []
    board = closing(ChannelServer(reported.append))  # type: ignore[arg-type]
    sock = closing(socket.create_connection((LOOPBACK, board.address.port), 60))
    nonce = sock.recv(NONCE_BYTES)
    mine = bytes(NONCE_BYTES)
    drives = LinkFrames(bytes(32), nonce + mine, is_caller=True).sealer.seal_frame(
        encode_message({"kind": "drives", "query": "one"})
    )
    sock.sendall(mine + token_proof(bytes(32), "caller", nonce + mine) + drives)
    with contextlib.suppress(ConnectionResetError):  # where it did not read all of ours
        assert sock.recv(1) == b"", "it hangs up, without its own proof"
    assert reported == [] and board.queries() == set()


def test_who_listens_on_the_port_and_is_not_the_application_learns_no_token(closing: Callable[[Any], Any]) -> None:
    """Another program may have the port by now, or on another machine."""
    listening = closing(socket.create_server((LOOPBACK, 0)))
    contact = ChannelAddress(listening.getsockname()[1], b"t" * 32)
    line = closing(ChannelClient(contact, Heard().handlers))
    line.announce_query("one")
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
    board = closing(ChannelServer())
    silent = closing(socket.create_connection((LOOPBACK, board.address.port), 60))
    assert len(silent.recv(NONCE_BYTES)) == NONCE_BYTES
    monkeypatch.undo()
    line = closing(ChannelClient(board.address, Heard().handlers))
    line.announce_query("one")
    line.start()
    until(lambda: board.queries() == {"one"}, "another is served meanwhile")
    assert silent.recv(1) == b"", "its time is over"
    until(lambda: len(board._sockets) == 1, "nothing is kept of it")


def test_strangers_hold_no_place_of_a_source(closing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Three hundred of them, silent after the greeting, held all places, and no source could connect."""
    monkeypatch.setattr(driver_channel, "SOURCES_MAX", 2)
    board = closing(ChannelServer())
    first = closing(ChannelClient(board.address, Heard().handlers))
    first.announce_query("first")
    first.start()
    until(lambda: board.queries() == {"first"}, "a source is connected")
    strangers = [
        closing(socket.create_connection((LOOPBACK, board.address.port), 60))
        for _ in range(connection_gate.STRANGERS_OF_ADDRESS_MAX + 100)
    ]
    for stranger in strangers:
        with contextlib.suppress(ConnectionError):
            stranger.sendall(b"x")  # of sixty-four bytes
    second = closing(ChannelClient(board.address, Heard().handlers))
    second.announce_query("second")
    second.start()
    until(lambda: board.queries() == {"first", "second"}, "another one connects meanwhile")
    assert first.connected and board.send_message("first", {"kind": "over"}) == 1
    most = 2 + connection_gate.STRANGERS_OF_ADDRESS_MAX + 1
    until(lambda: len(board._sockets) <= most, "the others are closed")


def test_there_is_a_most_of_connections(closing: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_channel, "SOURCES_MAX", 2)
    board = closing(ChannelServer())
    for name in ("one", "two"):
        line = closing(ChannelClient(board.address, Heard().handlers))
        line.announce_query(name)
        line.start()
    until(lambda: len(board.queries()) == 2, "as many as there may be")
    third = closing(ChannelClient(board.address, Heard().handlers))
    third.announce_query("three")
    third.start()
    lost = threading.Event()
    third._lost = lost.set
    assert lost.wait(60), "it is closed after it has proved itself"
    assert board.queries() == {"one", "two"}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_has_no_part_in_it(closing: Callable[[Any], Any]) -> None:
    board = closing(ChannelServer())
    line = closing(ChannelClient(board.address, Heard().handlers))
    line.announce_query("one")
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
    assert board.send_message("one", {"kind": "over"}) == 1, "the parent's connections go on"


def test_contacts_of_two_switchboards_differ(closing: Callable[[Any], Any]) -> None:
    one, two = closing(ChannelServer()), closing(ChannelServer())
    assert one.address.token != two.address.token
    stranger = closing(ChannelClient(replace(one.address, token=two.address.token), Heard().handlers))
    stranger.announce_query("one")
    stranger.start()
    until(lambda: stranger._logged, "it is refused")
    assert one.queries() == set()
