"""A query that is too far ahead is told nothing: Spark would run its timers, batch after batch, past what it keeps."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.spark.region.driven import Driven, Run
from tests.support.waiting import until

from kohort.errors import InvalidInputError
from kohort.region.messages import CheckpointAttempt
from kohort.spark.driver_channel import ChannelServer, Message
from kohort.spark.options import parse_options
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source.query import SourceQuery
from kohort.spark.source.region_offsets import ApplicationChannel, RegionOffsets

STAYS: Message = {"hold": True, "stay": True}
START = BatchOffset("i")


class Answers:
    """An application that gives these answers."""

    def __init__(self, *answers: Message) -> None:
        self.answers, self.asked = list(answers), 0

    def ask(self, message: Message, timeout_s: float) -> Message:
        assert message["what"] == "held" and message["wait_ms"] == 1_000
        self.asked += 1
        return self.answers.pop(0)

    def send(self, message: Message) -> bool:
        return True


def query_at(line: ApplicationChannel) -> SourceQuery:
    raw = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t", "group.id": "g"}
    place = partial(RegionOffsets, line=line, session="s")
    return SourceQuery(parse_options(raw, streaming=True), "i", place)


def test_latest_offset_waits_in_pieces_for_as_long_as_it_is_to_stay() -> None:
    line = Answers(STAYS, STAYS, STAYS, {"hold": True, "stay": False})
    assert query_at(line).plan_batch(START, limited=False) is None
    assert line.asked == 4


def test_an_application_that_says_no_more_than_hold_is_answered_at_once() -> None:
    line = Answers({"hold": True})
    assert query_at(line).plan_batch(START, limited=False) is None


def test_a_run_that_is_stopped_is_refused_while_it_stays() -> None:
    line = Answers(STAYS, {"refused": "its run is over"})
    with pytest.raises(InvalidInputError, match="its run is over"):
        query_at(line).plan_batch(START, limited=False)


SOURCE = """
import sys
from kohort.errors import KafkaError
from kohort.spark.driver_channel import ChannelAddress, ChannelClient
from kohort.spark.source.readers import SigtermHandler
from tests.spark.region.test_stays import START, query_at

ending = SigtermHandler()
ending.install_handler()
line = ChannelClient(ChannelAddress(int(sys.argv[1]), bytes.fromhex(sys.argv[2])), {})
line.announce_query("i")
line.start()
query = query_at(line)
try:
    query.plan_batch(START, limited=False)
    print("it has not stayed")
except KafkaError as error:
    print(error)
finally:
    ending.begin_stop()
    line.close()
    query.close()
    print("stop", flush=True)
"""


@pytest.mark.parametrize("by", ["SIGTERM", "its application"])
def test_a_source_that_stays_ends_at_once(by: str) -> None:
    asked: list[float] = []

    def answer(query: str, message: Message) -> Message:
        asked.append(time.monotonic())
        time.sleep(message["wait_ms"] / 1000)  # as the seat does while it holds
        return STAYS

    board = ChannelServer(answers={"ask": answer})
    command = [sys.executable, "-c", SOURCE, str(board.address.port), board.address.token.hex()]
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as source:
            until(lambda: len(asked) > 1 or source.poll() is not None, "it asks on")
            began = time.monotonic()
            if by == "SIGTERM":
                source.send_signal(signal.SIGTERM)
            else:
                board.close()
            out, err = source.communicate(timeout=60)
            took_s = time.monotonic() - began
    finally:
        board.close()
    assert out.splitlines()[-1:] == ["stop"] and source.returncode == 0, err
    assert ("the application is gone" in out) == (by != "SIGTERM") and "it has not stayed" not in out
    assert took_s < 10, "a bound for a busy machine: what it waits for never ends"


@pytest.fixture
def query(tmp_path: Path) -> Iterator[Driven]:
    driven = Driven(tmp_path)
    driven.spark.batches_kept = 10
    yield driven
    driven.close()


def trigger(run: Run) -> bool:
    """A trigger of Spark's in which timers are due; False: it is not over, for the source stays."""
    if run.ask("held", wait_ms=0).get("stay"):
        return False
    run.begin(rows=0) if "hold" not in run.ask("held", wait_ms=0) else _without_a_plan(run)
    run.finish()
    run.end()
    for path in ("offsets", "commits"):
        for file in (run.folder / path).iterdir():
            if int(file.name) < run._number - 10:
                file.unlink()
    return True


def _without_a_plan(run: Run) -> None:
    (run.folder / "offsets" / f"{run._number + 1}").write_text((run.folder / "offsets" / f"{run._number}").read_text())


def test_a_query_with_timers_does_not_walk_past_what_it_may_have_to_go_back_to(query: Driven) -> None:
    """No sequence is complete for long, as when its sink is down; then all go back."""
    query.begin()
    query.give({0: 100})
    query.run.batch()
    query.turn()
    state = query.contribute(CheckpointAttempt(8, 1)).state
    query.sequence(CheckpointAttempt(8, 2))
    run = query.run
    until(lambda: not trigger(run), "it stays", 20)
    assert run._number < 10
    until(lambda: "too far ahead" in query.threads[0].assignments._holds, "it is held", 10)
    query.reset(6, state, 8)
    query.goes_back()
    until(lambda: query.query.error is not None or query.run is not run, "it runs again", 10)
    assert query.query.error is None


def test_a_session_stays_only_for_being_ahead(query: Driven) -> None:
    query.begin()
    query.give({0: 100})
    run, thread = query.run, query.threads[0]
    thread.leave_region()
    assert run.ask("held", wait_ms=0) == {"hold": True, "stay": False}, "Spark comes to rest, and is stopped"
    thread.pace_checkpoints(5, 2, 5)
    assert run.ask("held", wait_ms=0) == STAYS
    thread.pace_checkpoints(4, 2, 5)
    assert run.ask("held", wait_ms=0) == {"hold": True, "stay": False}
