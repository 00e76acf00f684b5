"""A source's requests to its application, over a real channel, without Spark."""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.spark.region.desk import Desk
from tests.support.waiting import until

from kohort.spark.driver_channel import ChannelClient, ChannelServer, Message
from kohort.spark.source_sessions import (
    IDLE_MS,
    WAIT_MS_MAX,
    AssignmentReply,
    AssignmentReplyPart,
    IdleState,
    LostRange,
    LostRecords,
    SourceSessions,
)

A = uuid.UUID(int=1)


@pytest.fixture
def closing() -> Iterator[Callable[[Any], Any]]:
    """Closes what it is given, in the end."""
    every: list[Any] = []

    def keep(one: Any) -> Any:
        every.append(one)
        return one

    yield keep
    for session in reversed(every):
        session.close()


@pytest.fixture
def answering(closing: Callable[[Any], Any]) -> Callable[..., ChannelClient]:
    """A line to an application that answers by a function."""

    def make(
        answer: Callable[[str, Message], Message], heard: Callable[[Message], None] = lambda _: None
    ) -> ChannelClient:
        board = closing(ChannelServer(answers={"ask": answer}))
        line: ChannelClient = closing(ChannelClient(board.address, {"done": heard}))
        line.board = board  # type: ignore[attr-defined]
        line.announce_query("q1")
        line.start()
        return line

    return make


def test_a_question_gets_its_own_answer(answering: Callable[..., ChannelClient]) -> None:
    line = answering(lambda query, message: {"query": query, "twice": 2 * message["what"]})
    found: dict[int, Any] = {}
    threads = [
        threading.Thread(target=lambda n=n: found.update({n: line.ask({"kind": "ask", "what": n}, 60)["twice"]}))
        for n in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == {n: 2 * n for n in range(20)}
    assert line._answers == {}, "nothing is kept"


def test_notices_do_not_wait_for_an_answer_that_takes_its_time(answering: Callable[..., ChannelClient]) -> None:
    go, heard = threading.Event(), queue.Queue[Message]()
    line = answering(lambda query, message: {"late": go.wait(60)}, heard.put)
    answers: list[Message] = []
    asking = threading.Thread(target=lambda: answers.append(line.ask({"kind": "ask"}, 60)))
    asking.start()
    until(lambda: line._answers, "it is asked")
    assert line.board.send_message("q1", {"kind": "done", "end": "1"}) == 1  # type: ignore[attr-defined]
    assert heard.get(timeout=60) == {"kind": "done", "end": "1"}
    assert not answers
    go.set()
    asking.join(60)
    assert [answer["late"] for answer in answers] == [True]


def test_an_answer_that_comes_too_late_is_nobodys(answering: Callable[..., ChannelClient]) -> None:
    go = threading.Event()
    line = answering(lambda query, message: {"late": message["what"], "waited": message["what"] == 1 and go.wait(60)})
    with pytest.raises(TimeoutError, match=r"did not answer within 0\.05 s"):
        line.ask({"kind": "ask", "what": 1}, 0.05)
    go.set()
    assert line.ask({"kind": "ask", "what": 2}, 60)["late"] == 2


PAUSED = """
import sys
from kohort.spark.driver_channel import ChannelAddress, ChannelClient

line = ChannelClient(ChannelAddress(int(sys.argv[1]), bytes.fromhex(sys.argv[2])), {})
line.announce_query("q1")
line.start()
print(line.ask({"kind": "ask"}, 10)["first"], flush=True)
print(line.ask({"kind": "ask"}, 1.0)["first"], flush=True)
"""


def test_time_in_which_the_source_itself_was_paused_does_not_count_for_its_application(
    closing: Callable[[Any], Any],
) -> None:
    asked: list[float] = []
    child: list[subprocess.Popen[str]] = []
    there = threading.Event()

    def answer(query: str, message: Message) -> Message:
        asked.append(time.monotonic())
        if len(asked) == 2:
            there.wait(60)
            os.kill(child[0].pid, signal.SIGSTOP)
            time.sleep(2.0)  # a pause is a time
            os.kill(child[0].pid, signal.SIGCONT)
        return {"first": len(asked) == 1}

    contact = closing(ChannelServer(answers={"ask": answer})).address
    command = [sys.executable, "-c", PAUSED, str(contact.port), contact.token.hex()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as source:
        child.append(source)
        there.set()
        assert source.stdout is not None and source.stdout.read().split() == ["True", "False"]
    assert source.returncode == 0


@pytest.mark.parametrize("when", ["before", "while it waits"])
def test_an_application_that_is_gone_is_known_at_once(answering: Callable[..., ChannelClient], when: str) -> None:
    go = threading.Event()
    line = answering(lambda query, message: {"late": message["what"] == 2 and go.wait(60)})
    assert line.ask({"kind": "ask", "what": 1}, 60)["late"] is False
    began = time.monotonic()
    if when == "before":
        line.board.close()  # type: ignore[attr-defined]
        until(lambda: not line.connected, "it is known")
    else:
        ending = threading.Timer(0.1, line.board.close)  # type: ignore[attr-defined]
        ending.start()
    with pytest.raises(ConnectionError, match="the application is gone"):
        line.ask({"kind": "ask", "what": 2}, 600)
    assert time.monotonic() - began < 60
    go.set()


def test_the_first_connection_is_waited_for_and_one_that_never_comes_is_reported(closing: Callable[[Any], Any]) -> None:
    board = closing(ChannelServer(answers={"ask": lambda query, message: {"query": query}}))
    line = closing(ChannelClient(board.address, {}))
    with pytest.raises(ConnectionError, match="can't be reached on port"):
        line.ask({"kind": "ask"}, 0.05)
    later = threading.Timer(0.1, lambda: (line.start(), line.announce_query("q1")))
    later.start()
    assert line.ask({"kind": "ask"}, 60)["query"] == "q1"


def test_what_is_handed_out_and_lost_survives_the_channel() -> None:
    handed = AssignmentReply(7, 5, 3, (AssignmentReplyPart("a", A, 0, 10, 1), AssignmentReplyPart("b", A, 1, 0, 2)))
    assert AssignmentReply.from_message(handed.to_message()) == handed
    lost = LostRecords("gone", True, (LostRange("a", A, 0, 1, 10, -1),))
    assert LostRecords.from_message(lost.to_message("s")) == lost
    for wrong in ({}, {"hold": True}, {"version": 1, "epoch": 1, "generation": 1, "parts": [[1]]}):
        with pytest.raises(ValueError, match=r"what is held|unpack"):
            AssignmentReply.from_message(wrong)
    with pytest.raises(ValueError, match="lost records"):
        LostRecords.from_message({"kind": "lost"})


def ask(sessions: SourceSessions, what: str, session: object = "s", query: str = "q1", **facts: Any) -> Message:
    return sessions.answer_request(query, {"kind": "ask", "number": 1, "seat": session, "what": what, **facts})


def test_a_session_answers_its_query_and_nobody_else() -> None:
    sessions, desk = SourceSessions(), Desk("a", A)
    unknown = {"refused": "the option regionSeat is set by SparkRegion alone, for the run that it starts: leave it out"}
    assert ask(sessions, "held", wait_ms=0) == unknown
    sessions.add("s", desk)
    assert sessions.query_of_session("s") is None
    for other in ("t", None, 7, ["s"]):
        assert ask(sessions, "held", other, wait_ms=0) == unknown
    desk.hand({0: 10})
    assert ask(sessions, "held", wait_ms=60_000)["parts"] == [["a", str(A), 0, 10, 1]]
    assert sessions.query_of_session("s") == "q1"
    assert "another query reads this same load()" in ask(sessions, "held", query="q2", wait_ms=0)["refused"]
    assert desk.waits == [WAIT_MS_MAX], "no source has its application wait for longer"
    ask(sessions, "held", wait_ms=0, **IdleState(1, 60_000).to_message())
    assert desk.idle == [None, IdleState(1, IDLE_MS)], "nor does it keep one that has found nothing"
    assert ask(sessions, "begin", version=0, batch=1) == {"ok": False}
    assert ask(sessions, "begin", version=1, batch=1) == {"ok": True}
    assert ask(sessions, "end", batch=1) == {"ok": True} and desk.ended == [1]
    desk.hold(True)
    assert ask(sessions, "held", wait_ms=0) == {"hold": True, "stay": False}
    desk.keeps = True
    assert ask(sessions, "held", wait_ms=0) == {"hold": True, "stay": True}
    desk.refusal = "the region has stopped"
    assert ask(sessions, "held", wait_ms=0) == {"refused": "the region has stopped"}
    sessions.add("s", Desk("a", A))
    assert ask(sessions, "held", query="q2", wait_ms=0)["parts"] == [], "another run, another query"
    sessions.remove_session("s")
    assert ask(sessions, "held", query="q2", wait_ms=0) == unknown and sessions.query_of_session("s") is None


@pytest.mark.parametrize(
    ("what", "facts"),
    [
        ("held", {}),
        ("begin", {"version": 1}),
        ("end", {"batch": "1"}),
        ("held", {"wait_ms": -1}),
        ("held", {"wait_ms": 0, "known": 1}),
        ("more", {}),
    ],
)
def test_a_question_that_can_not_be_is_refused(what: str, facts: dict[str, Any]) -> None:
    sessions = SourceSessions()
    sessions.add("s", Desk("a", A))
    assert "use one version of" in ask(sessions, what, **facts)["refused"]


def test_lost_records_are_reported_to_their_session(caplog: pytest.LogCaptureFixture) -> None:
    sessions, desk = SourceSessions(), Desk("a", A)
    sessions.add("s", desk)
    lost = LostRecords("records are gone", False, (LostRange("a", A, 0, 1, 5, 7),))
    sessions.report_lost("q1", lost.to_message("s"))
    assert desk.lost_parts == [lost]
    sessions.report_lost("q1", lost.to_message("t"))
    assert desk.lost_parts == [lost]
    goes_on = "its query goes on without them (failOnDataLoss=false)"
    assert caplog.messages == [f"a source reports records that may be lost: records are gone; {goes_on}"] * 2


def test_the_application_of_a_session_answers_for_the_sessions_of_its_process(closing: Callable[[Any], Any]) -> None:
    from kohort.spark.driver_server import Application
    from kohort.spark.source_sessions import SOURCE_SESSIONS

    line = closing(ChannelClient(Application().channel_address, {}))
    line.announce_query("q1")
    line.start()
    desk = Desk("a", A)
    SOURCE_SESSIONS.add("of a test", desk)
    try:
        question = {"kind": "ask", "seat": "of a test", "what": "held", "wait_ms": 0}
        assert line.ask(question, 60)["epoch"] == desk.epoch
        assert line.send(LostRecords("gone", False, ()).to_message("of a test"))
        until(lambda: desk.lost_parts, "it is told")
    finally:
        SOURCE_SESSIONS.remove_session("of a test")
    assert "refused" in line.ask(question, 60)


def test_an_error_of_the_application_is_no_answer_and_ends_the_connection(
    closing: Callable[[Any], Any], caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise RuntimeError("of a test")

    sessions, desk = SourceSessions(), Desk("a", A)
    sessions.add("s", desk)
    desk.before_begin = fail
    board = closing(ChannelServer(answers={"ask": sessions.answer_request}))
    line = closing(ChannelClient(board.address, {}))
    line.announce_query("q1")
    line.start()
    with pytest.raises(ConnectionError):
        line.ask({"kind": "ask", "seat": "s", "what": "begin", "version": 0, "batch": 1}, 60)
    until(lambda: not board.queries(), "the connection has ended")
    assert "[query q1] unexpected error while the driver program handled" in caplog.text and "of a test" in caplog.text
