"""Public methods called by a signal's handler at every line of code that the interrupted thread goes through.

A handler runs between two instructions of the thread that it interrupts. So does a trace function, which comes at each
line; here it calls the method. Code of a region, of its channel and of `threading` is traced: locks are held there.
"""

from __future__ import annotations

import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any

import pyarrow as pa
import pytest

import kohort
from kohort.errors import InvalidInputError
from kohort.region.region import Region
from tests.region.conftest import Collected, fill, make_topic
from tests.region.test_region import all_once
from tests.support.waiting import until

RECORDS = 40
WAIT_S = 120
OFTEN = 2
"""Calls at one place of the code: what is held there may differ from one time to the next."""
TRACED = (str(Path(kohort.__file__).parent / "region"), str(Path(kohort.__file__).parent / "channel.py"),
          threading.__file__)  # fmt: skip
DO = {
    "member.checkpoint": lambda region, member: member.checkpoint(),
    "member.reset": lambda region, member: member.reset("a handler"),
    "member.close": lambda region, member: member.close(),
    "member.abort": lambda region, member: member.abort("a handler"),
    "member.submit": lambda region, member: member.submit(member_table(member)),
    "member.tables": lambda region, member: next(member.tables()),
    "region.close": lambda region, member: region.close(),
    "region.checkpoint": lambda region, member: region.checkpoint(),
    "region.reset": lambda region, member: region.reset(),
    "region.describe": lambda region, member: region.describe(),
    "region.complete": lambda region, member: region.complete(),
    "region.is_served": lambda region, member: region.is_served(),
}
ENDS = ("member.close", "member.abort", "region.close")
INSIDE = {"member.submit": "_add", "member.tables": "take_table"}
"""Functions in which a call for rows is interrupted; before them, the handler's own call for rows is a good one."""


def member_table(member: Any) -> Any:
    """The table in hand, or one that nobody has: a handler submits at a bad moment."""
    piece = member._flow.current_table
    return pa.table({"value": [b"0"]}) if piece is None else piece.table.select(["value"])


class Handler:
    """Calls `do` at each line, a few times at each place; from the `first` line on."""

    def __init__(self, do: Callable[[], Any], first: int = 0, inside: str = "") -> None:
        self.do, self.first, self.inside = do, first, inside
        self.lines = self.calls = 0
        self.at: Counter[tuple[str, int]] = Counter()
        self.refused = 0

    @contextmanager
    def interrupting(self) -> Iterator[None]:
        sys.settrace(self._enter)
        try:
            yield
        finally:
            sys.settrace(None)

    def _enter(self, frame: FrameType, event: str, arg: Any) -> Any:
        return self._line if frame.f_code.co_filename.startswith(TRACED) else None

    def _line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event != "line" or (self.inside and not self._is_inside(frame)):
            return self._line
        place = frame.f_code.co_filename, frame.f_lineno
        self.lines += 1
        self.at[place] += 1
        if self.lines > self.first and self.at[place] <= OFTEN:
            self.calls += 1
            try:
                self.do()
            except InvalidInputError:
                self.refused += 1
        return self._line

    def _is_inside(self, frame: FrameType | None) -> bool:
        while frame is not None:
            if frame.f_code.co_name == self.inside:
                return True
            frame = frame.f_back
        return False


class Interrupted:
    """An application in a thread of its own, which a handler interrupts at every line."""

    def __init__(self, servers: str, name: str, sink: Collected) -> None:
        self.region = Region(name, servers, checkpoint_every="50ms")
        self.region._election._config = replace(self.region.config, resets_most=10**6)
        self.settings: dict[str, Any] = {
            "group_id": name, "topics": [name], "into": sink, "start": "beginning", "max_poll_records": 2,
            "heartbeat_interval_ms": 100,
        }  # fmt: skip
        self.member: Any = None
        self.seen = 0
        self.error: BaseException | None = None

    def run(self, handler: Handler) -> None:
        thread = threading.Thread(target=self._guarded, args=(handler,), daemon=True)
        thread.start()
        thread.join(WAIT_S)
        if thread.is_alive():
            frame = sys._current_frames()[thread.ident or 0]
            pytest.fail("it hangs:\n" + "".join(traceback.format_stack(frame)))
        if self.error is not None:
            raise self.error

    def _guarded(self, handler: Handler) -> None:
        try:
            self.loop(handler)
        except BaseException as error:  # noqa: BLE001 - the test raises it
            self.error = error

    def loop(self, handler: Handler) -> None:
        with self.region, self.region.consumer("m1", **self.settings) as self.member:
            with handler.interrupting():
                for table in self.member.tables():
                    self.member.submit(table.select(["value"]))
                    self.seen += table.num_rows
                    if self.seen >= RECORDS:
                        self.member.close()


def read_the_rest(servers: str, name: str, sink: Collected) -> None:
    """Read what the interrupted application left, and see that all is there once."""
    app = Interrupted(servers, name, sink)
    with app.region:
        with app.region.consumer("m2", **app.settings) as member:
            reading = threading.Thread(
                target=lambda: [member.submit(table.select(["value"])) for table in member.tables()]
            )
            reading.start()
            until(lambda: all_once(sink, range(RECORDS)), "all records are there")
            member.close()
            reading.join(60)
            assert not reading.is_alive()
    assert all_once(sink, range(RECORDS))


@pytest.mark.parametrize("method", DO)
def test_method_in_a_handler_waits_for_nothing_that_its_own_thread_holds(
    own_servers: str, name: str, method: str
) -> None:
    make_topic(own_servers, name, 1)
    fill(own_servers, name, range(RECORDS), 1)
    sink = Collected()
    app = Interrupted(own_servers, name, sink)
    handler = Handler(lambda: DO[method](app.region, app.member), inside=INSIDE.get(method, ""))
    if method.startswith("region.") and method not in ENDS:
        handler.inside = "_ask"  # they wait for an answer: only another call of the region is in their way

        def asking(handler: Handler) -> None:
            with app.region, app.region.consumer("m1", **app.settings) as app.member:
                with handler.interrupting():
                    app.region.describe()

        app.loop = asking  # type: ignore[method-assign]
    app.run(handler)
    assert handler.calls > 5
    assert bool(handler.refused) == bool(handler.inside), "what can't be done there says so"
    read_the_rest(own_servers, name, sink)


@pytest.mark.parametrize("first", range(0, 400, 40))
@pytest.mark.parametrize("method", ENDS)
def test_end_in_a_handler_loses_nothing_from_whichever_line_on(
    own_servers: str, name: str, method: str, first: int
) -> None:
    make_topic(own_servers, name, 1)
    fill(own_servers, name, range(RECORDS), 1)
    sink = Collected()
    app = Interrupted(own_servers, name, sink)
    app.run(Handler(lambda: DO[method](app.region, app.member), first))
    read_the_rest(own_servers, name, sink)


@pytest.mark.parametrize("first", range(0, 1500, 150))
def test_region_that_is_closed_in_a_handler_while_it_makes_a_member_closes_when_that_is_made(
    own_servers: str, name: str, first: int
) -> None:
    """The handler met the lock of the control plane's election, which its own thread held."""
    make_topic(own_servers, name, 1)
    fill(own_servers, name, range(RECORDS), 1)
    sink = Collected()
    app = Interrupted(own_servers, name, sink)

    def making(handler: Handler) -> None:
        with handler.interrupting():
            if first == 0:  # it is closed before that begins
                with pytest.raises(InvalidInputError, match="was closed here"):
                    app.region.consumer("m1", **app.settings)
                return
            app.member = app.region.consumer("m1", **app.settings)
        for table in app.member.tables():
            app.member.submit(table.select(["value"]))
        app.region.close()

    app.loop = making  # type: ignore[method-assign]
    handler = Handler(app.region.close, first)
    app.run(handler)
    assert handler.calls > 0 and (first == 0 or not app.member._events.thread.is_alive())
    read_the_rest(own_servers, name, sink)
