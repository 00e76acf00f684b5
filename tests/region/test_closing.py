"""Ways out of a member's loop, at each moment of a table: each record is in the output once, in the end."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kohort import TopicPartition
from kohort.errors import InvalidInputError
from kohort.region.consumer import RegionConsumer
from kohort.region.region import Region
from tests.region.conftest import Collected, fill, make_topic
from tests.region.member_forks import MEMBER, start_module
from tests.region.member_process import in_pieces
from tests.region.test_region import all_once, committed
from tests.support.waiting import until

RECORDS, BEFORE = 40, 20
"""The member is left in the first table that has a record after the first twenty."""
MOMENTS = ("before", "between", "after")
COLUMNS = ["value"]


class LeftError(Exception):
    """The application leaves its loop."""


class Application:
    """A loop over tables, each of which is submitted in three pieces; its state is the sum of what it has read."""

    def __init__(self, servers: str, topic: str, sink: Collected, moment: str, *, stateful: bool) -> None:
        self.servers, self.topic, self.moment = servers, topic, moment
        self.total = self.seen = 0
        self.done: set[int] = set()
        self.reached = False
        self.region = Region(topic, servers, checkpoint_every="100ms")
        options: dict[str, Any] = {"on_checkpoint": self._save, "on_reset": self._restore} if stateful else {}
        self.consumer: RegionConsumer = self.region.consumer(
            "m1", topics=[topic], group_id=topic, into=sink, start="beginning", max_poll_records=10,
            heartbeat_interval_ms=100, **options,
        )  # fmt: skip

    def _save(self, sequence: int) -> bytes:
        del sequence
        return str(self.total).encode()

    def _restore(self, sequence: int, state: bytes | None) -> None:
        del sequence
        self.total = int(state or b"0")

    def process(self, table: pa.Table, leave: Callable[[], None]) -> None:
        """Submit a table, and leave at the moment, once."""
        values = [int(value) for value in table["value"].to_pylist()]
        due = not self.reached and max(values) >= BEFORE

        def moment(name: str) -> None:
            if due and name == self.moment:
                self.reached = True
                leave()

        moment("before")
        self.total += sum(values)
        for number, rows in enumerate(in_pieces(table.select(COLUMNS), 3)):
            self.consumer.submit(rows)
            if number == 1:
                moment("between")
        moment("after")
        self.seen += len(values)
        self.done |= set(values)
        if self.seen == BEFORE and self.moment in MOMENTS:
            fill(self.servers, self.topic, range(BEFORE, RECORDS), 1)

    def run(self, leave: Callable[[], None] = lambda: None) -> None:
        """The loop of the documentation."""
        with self.region, self.consumer:
            for table in self.consumer.tables():
                self.process(table, leave)


def raise_left() -> None:
    raise LeftError("in the loop")


def raise_signal(number: signal.Signals, handler: Any) -> Callable[[], None]:
    """Gets a signal in the main thread, with that handler."""

    def leave() -> None:
        before = signal.signal(number, handler)
        try:
            signal.raise_signal(number)
        finally:
            signal.signal(number, before)

    return leave


def closes_in_its_handler(app: Application) -> None:
    app.run(raise_signal(signal.SIGTERM, lambda *_: app.consumer.close()))


def closes_the_region_in_its_handler(app: Application) -> None:
    app.run(raise_signal(signal.SIGTERM, lambda *_: app.region.close()))


def closes_twice_in_its_handler_and_breaks(app: Application) -> None:
    def close() -> None:
        for _ in range(2):
            app.consumer.close()
        raise_left()

    with app.region, app.consumer:
        for table in app.consumer.tables():
            try:
                app.process(table, raise_signal(signal.SIGTERM, lambda *_: close()))
            except LeftError:
                break


def exits_in_its_handler(app: Application) -> None:
    with pytest.raises(SystemExit):
        app.run(raise_signal(signal.SIGTERM, lambda *_: sys.exit(0)))


def is_interrupted(app: Application) -> None:
    with pytest.raises(KeyboardInterrupt):
        app.run(raise_signal(signal.SIGINT, signal.default_int_handler))


def raises(app: Application) -> None:
    with pytest.raises(LeftError):
        app.run(raise_left)


def breaks(app: Application) -> None:
    with app.region, app.consumer:
        for table in app.consumer.tables():
            try:
                app.process(table, raise_left)
            except LeftError:
                break


def closes_after_an_exception(app: Application) -> None:
    """Without `with`."""
    with contextlib.suppress(LeftError):
        try:
            for table in app.consumer.tables():
                app.process(table, raise_left)
        finally:
            app.consumer.close()
    app.region.close()


def asks_by_hand(app: Application) -> None:
    """Nobody ends the generator before the `with` is left."""
    with app.region, app.consumer:
        tables = app.consumer.tables()
        while not app.reached:
            with contextlib.suppress(LeftError):
                app.process(next(tables), raise_left)
    assert tables


def begins_again(app: Application) -> None:
    """A second loop has the table that the first left undone."""
    with app.region, app.consumer:
        with contextlib.suppress(LeftError):
            for table in app.consumer.tables():
                app.process(table, raise_left)
        for table in app.consumer.tables():
            app.process(table, raise_left)
            if app.done == set(range(RECORDS)):
                app.consumer.close()


def is_closed_by_another_thread(app: Application) -> None:
    threads: list[threading.Thread] = []

    def leave() -> None:
        threads.append(threading.Thread(target=app.consumer.close))
        threads[0].start()
        until(lambda: app.consumer._asked_to_close, "the close has begun")

    app.run(leave)
    threads[0].join(60)
    assert not threads[0].is_alive()


def forks(app: Application) -> None:
    """The child ends as a program does, by leaving all its blocks; nothing of that reaches the parent's member."""

    def leave() -> None:
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with app.region, app.consumer:
                    with pytest.raises(InvalidInputError, match="before a fork"):
                        app.consumer.submit(pa.table({"value": [b"1"]}))
                    app.consumer.close()
                    app.consumer.abort("the child has failed")
                code = 0
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        app.consumer.close()

    app.run(leave)


WAYS = [
    closes_in_its_handler,
    closes_the_region_in_its_handler,
    closes_twice_in_its_handler_and_breaks,
    exits_in_its_handler,
    is_interrupted,
    raises,
    breaks,
    closes_after_an_exception,
    asks_by_hand,
    begins_again,
    is_closed_by_another_thread,
    forks,
]


@pytest.mark.parametrize(
    ("way", "moment", "stateful"),
    [
        pytest.param(way, moment, stateful, id=f"{way.__name__}-{moment}-{'with state' if stateful else 'rows'}")
        for way in WAYS
        for moment in MOMENTS
        for stateful in ([False, True] if way in (breaks, closes_in_its_handler, raises) else [False])
    ],
)
def test_records_are_there_once_whichever_way_the_loop_is_left(
    own_servers: str, name: str, way: Callable[[Application], None], moment: str, stateful: bool
) -> None:
    make_topic(own_servers, name, 1)
    fill(own_servers, name, range(BEFORE), 1)
    sink = Collected()
    first = Application(own_servers, name, sink, moment, stateful=stateful)
    way(first)
    assert first.reached
    offset = next(iter(committed(own_servers, name).values()), 0)
    assert sink.rows() == Counter(range(offset)), "what is committed is published, and nothing else"

    second = Application(own_servers, name, sink, "never", stateful=stateful)
    thread = threading.Thread(target=second.run, daemon=True)
    thread.start()
    until(lambda: all_once(sink, range(RECORDS)), "all records are there")
    until(lambda: not stateful or second.total == sum(range(RECORDS)), "they are in its state once")
    second.consumer.close()
    thread.join(60)
    assert not thread.is_alive() and all_once(sink, range(RECORDS))
    assert committed(own_servers, name) == {TopicPartition(name, 0): RECORDS}


@pytest.mark.parametrize("moment", ["before", "between", "after", "while it waits"])
def test_process_that_closes_in_its_signal_handler_loses_nothing(
    own_servers: str, name: str, tmp_path: Path, moment: str
) -> None:
    """The handler is the one of the documentation; SIGTERM comes at that moment of a table."""
    make_topic(own_servers, name, 1)
    fill(own_servers, name, range(RECORDS), 1)
    words = [own_servers, name, "m1", name, str(tmp_path), "classic", "reset", "--submits", "4", "--most", "10"]
    waits = moment == "while it waits"
    with start_module(MEMBER, [*words, "--ends-at", moment]) as first:
        if waits:
            until(lambda: set(ids(tmp_path)) == set(range(RECORDS)), "it has read all, and waits")
            first.terminate()
        assert first.wait(60) == 0
    (offset,) = committed(own_servers, name).values()
    assert offset > 0 and ids(tmp_path) == Counter(range(offset)), "what is committed is in the folder, all of it"
    fill(own_servers, name, range(RECORDS, RECORDS + 10), 1)
    with start_module(MEMBER, words) as second:
        until(lambda: set(ids(tmp_path)) == set(range(RECORDS + 10)), "all records are in the folder")
        second.terminate()
        assert second.wait(60) == 0
    assert ids(tmp_path) == Counter(range(RECORDS + 10))


def ids(folder: Path) -> Counter[int]:
    """How often each value is in the published sequences."""
    found: Counter[int] = Counter()
    for file in folder.glob("sequence=*/*.parquet"):
        table: Any = pq.ParquetFile(file).read(["value"])
        found.update(int(value) for value in table["value"].to_pylist())
    return found
