"""The whole story of a region in one run: whatever befalls its applications, all that they wrote is the input, once.

Three queries in two applications read one group's topic while it grows. They write into Parquet files, a Delta table
and a database, and one sink fails at random. An application is killed, a fourth query joins, and partitions are added.
An application sleeps for a minute and wakes, and the one with the control plane is killed. Readers look at all three
places all the time, and another at the group's offsets.

`make spark-region-story`; it takes minutes each, on our broker and on Apache Kafka, in both protocols.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.spark.region.history import History, SequenceStep
from tests.spark.region.trial import Application, Trial, rows_of_all_kinds
from tests.spark.region.watching import KINDS, Look, Watcher, parts_seen
from tests.support.waiting import LAST_RESORT, until

from kohort import Broker
from kohort.region.records import Contribution

ASKED = "KOHORT_REGION_STORY" in os.environ
pytestmark = [LAST_RESORT, pytest.mark.skipif(not ASKED, reason="a long one: make spark-region-story")]

KIND_OF = {"a": "parquet", "b": "delta", "c": "sqlite", "d": "sqlite"}
"""Where each query writes. What nobody else writes to waits for an application that is killed, to be published."""
FAILS = 0.004
"""How likely a task that writes Parquet files finds no room: once in some hundred."""
FEED, FEED_S = 60, 0.4
"""So many records, again after so long."""
ASLEEP_S = 60.0
EVERY = "2s"
SETTINGS = {"group.initial.rebalance.delay.ms": "0", "group.consumer.min.session.timeout.ms": "1000"}


def _rows(given: Contribution) -> int:
    return sum(span.end - span.begin for span in given.spans)


class Story(Trial):
    """A trial whose topic is fed all the time, with readers of all places and of the region's history."""

    def __init__(self, servers: str, folder: Path, protocol: str) -> None:
        super().__init__(servers, folder, protocol)
        self.history = History(self.name, servers, {})
        self.watcher = Watcher({kind: KINDS[kind](folder) for kind in dict.fromkeys(KIND_OF.values())})
        self.notes: list[str] = []
        self._fed = threading.Event()
        self._feeding = threading.Thread(target=self._feed, name="feed", daemon=True)
        self.failure: Exception | None = None
        self._began = time.monotonic()

    def begin(self) -> None:
        """Have records come, and readers look."""
        self.watcher.start()
        self._feeding.start()

    def _feed(self) -> None:
        try:
            while not self._fed.wait(FEED_S):
                self.send(FEED)
        except Exception as error:  # noqa: BLE001 - told by the next check
            self.failure = error

    def fed(self) -> None:
        """No more records come."""
        self._fed.set()
        self._feeding.join()

    def log(self, what: str) -> None:
        """A line of the story."""
        self.notes.append(f"{time.monotonic() - self._began:6.1f} s  {what}")
        print(self.notes[-1], flush=True)

    def check(self) -> None:
        super().check()
        assert self.failure is None, self.failure
        assert self.watcher.error is None, self.watcher.error
        self.history.follow()

    def sequences_of(self, *queries: str) -> int:
        """How many sequences with records of one of these there were."""
        return sum(any(row.member in queries and _rows(row) for row in step.contributions) for step in self._steps)

    @property
    def _steps(self) -> Sequence[SequenceStep]:
        return self.history.sequences

    def continues_without(self, *queries: str) -> None:
        """Others publish."""
        others = set(KIND_OF) - set(queries)
        before = self.sequences_of(*others)
        self.until(lambda: self.sequences_of(*others) > before + 1, f"sequences go on without {queries}")

    def continues_with(self, *queries: str) -> None:
        """Each of these publishes."""
        before = {query: self.sequences_of(query) for query in queries}
        self.until(
            lambda: all(self.sequences_of(query) > count for query, count in before.items()), f"{queries} publish"
        )

    def has_published(self, partition: int) -> bool:
        """Whether a sequence has records of a partition."""
        spans = (span for step in self._steps for contribution in step.contributions for span in contribution.spans)
        return any(span.partition == partition and span.end > span.begin for span in spans)

    def found(self) -> Counter[tuple[int, int, str]]:
        return Counter(rows_of_all_kinds(self.folder))

    def ends_exactly(self) -> None:
        """All is published, all end by themselves, and nobody has seen what must not be seen."""
        self.fed()
        wanted = Counter((*where, value) for where, value in self.sent.items())
        self.until(lambda: sum(look.rows for look in self._last_looks()) == wanted.total(), "all is published")
        running = [app for app in self.apps.values() if app.process is not None]
        for app in running:
            app.stop(wait=False)
        codes = {app.name: app.ended() for app in running}
        assert not any(codes.values()), (codes, [app.log.read_text()[-3000:] for app in running])
        self.history.follow()
        self.watcher.stop()
        assert not self.watch.wrong and self.watch.looks, self.watch.wrong
        found = self.found()
        assert found == wanted, f"missing {list(wanted - found)[:5]}, too many {list(found - wanted)[:5]}"
        assert not [*parts_seen(self.watcher.looks, self._steps, KIND_OF)]
        assert {look.place for look in self._last_looks() if look.rows} == set(KIND_OF.values()), "each was written to"
        self._holds_floors()

    def _last_looks(self) -> list[Look]:
        return list({look.place: look for look in list(self.watcher.looks)}.values())

    def _holds_floors(self) -> None:
        """Rows staged before a reset count in no checkpoint after it."""
        for reset in self.history.resets:
            for step in self._steps:
                if step.number > reset.to:
                    late = [
                        contribution.member for contribution in step.contributions if contribution.epoch < reset.epoch
                    ]
                    assert not late, f"sequence {step.number} has what {late} did before the reset to {reset.to}"

    def close(self) -> None:
        self._fed.set()
        if self._feeding.is_alive():
            self._feeding.join()
        self.watcher.stop()
        super().close()
        self.history.close()


@pytest.fixture(scope="module")
def own_broker() -> Iterator[Broker]:
    with Broker(config=SETTINGS) as broker:
        yield broker


@pytest.fixture(params=["own", pytest.param("apache", marks=pytest.mark.kafka)])
def servers(request: pytest.FixtureRequest) -> str:
    return str(request.getfixturevalue("own_broker" if request.param == "own" else "apache_kafka").bootstrap_servers)


@pytest.fixture(params=["classic", "consumer"])
def story(request: pytest.FixtureRequest, servers: str, tmp_path: Path) -> Iterator[Story]:
    running = Story(servers, tmp_path, request.param)
    yield running
    running.close()


def is_killed(story: Story, app: Application) -> None:
    story.log(f"SIGKILL to {app.name}")
    app.kill()
    app.start()
    story.all_run()
    story.continues_with(*app.options.queries)
    story.log(f"{app.name} is back")


def stops_outside_the_database(story: Story, app: Application) -> None:
    """A process stopped within a transaction of SQLite keeps the file locked for all, readers too."""
    while True:
        app.signal(signal.SIGSTOP)
        with contextlib.closing(sqlite3.connect(story.folder / "flights.db", isolation_level=None)) as database:
            try:
                database.execute("BEGIN EXCLUSIVE")
                return
            except sqlite3.OperationalError:
                story.log(f"{app.name} has the database locked, and is stopped a moment later")
        app.signal(signal.SIGCONT)
        time.sleep(0.3)


def sleeps_for_a_minute(story: Story, app: Application) -> None:
    """The others go on without it; when it wakes, it goes back or ends, and nothing that it was about counts."""
    story.log(f"SIGSTOP to {app.name}")
    stops_outside_the_database(story, app)
    until_s = time.monotonic() + ASLEEP_S
    story.continues_without(*app.options.queries)
    story.log(f"the others go on without {app.name}")
    story.until(lambda: time.monotonic() > until_s, "a minute")
    before = app.log.stat().st_size
    woke_s = time.monotonic()
    app.signal(signal.SIGCONT)

    def has_released() -> bool:
        return all(f"[query {query}] resetting" in _said(app, before) for query in app.options.queries) or _has_ended(
            app
        )

    until(has_released, f"{app.name} goes back, or ends")
    story.log(f"{app.name} {'has ended' if _has_ended(app) else 'goes back'} {time.monotonic() - woke_s:.2f} s after")
    if _has_ended(app):
        app.kill()
        app.start()
    story.all_run()
    story.continues_with(*app.options.queries)
    story.log(f"{app.name} is back")


def _said(app: Application, since: int) -> str:
    return app.log.read_bytes()[since:].decode()


def _has_ended(app: Application) -> bool:
    return app.process is not None and app.process.poll() is not None


def test_all_that_was_written_is_the_input_once(story: Story) -> None:
    first = story.app("first", "a", "b", sinks=KIND_OF, fails=FAILS, checkpoint_every=EVERY)
    second = story.app("second", "c", sinks=KIND_OF, checkpoint_every=EVERY)
    third = story.app("third", "d", sinks=KIND_OF, checkpoint_every=EVERY)
    story.begin()
    first.start()
    story.until(first.runs, "the first runs, with the control plane")
    second.start()
    story.all_run()
    story.continues_with("a", "b", "c")
    story.log("three queries publish")
    is_killed(story, second)
    third.start()
    story.all_run()
    story.continues_with("d")
    story.log("a fourth query publishes")
    story.add_partitions()
    story.until(lambda: story.has_published(story.partitions - 1), "what was added is published")
    story.log("partitions that were added are published")
    sleeps_for_a_minute(story, second)
    is_killed(story, first)
    story.ends_exactly()
    resets = [f"to {reset.to}: {reset.cause}" for reset in story.history.resets]
    story.log(
        f"{len(story.sent)} records, {len(story.history.sequences)} sequences, {len(story.history.terms)} terms, "
        f"{story.watcher.count} looks, {len(story.watcher.looks)} of them new, {story.watch.looks} looks at offsets"
    )
    story.log("resets\n" + "\n".join(resets))
