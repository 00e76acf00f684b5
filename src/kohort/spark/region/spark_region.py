"""A consistent region of Spark queries: the face of it."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack
from uuid import UUID, uuid4

from kohort.client.setting_types import ConnectionSettings
from kohort.client.settings import Servers
from kohort.errors import InvalidInputError, TimedOutError
from kohort.region.admission import Applicant
from kohort.region.consuming.publishing import Publisher
from kohort.region.consuming.settings import MemberConfig
from kohort.region.member.machine import MemberMachine
from kohort.region.member.state import Behaviour
from kohort.region.messages import RegionSeen
from kohort.region.region import Region
from kohort.region.sinks import Sink, place_of
from kohort.spark.options import SourceOptions, client_settings
from kohort.spark.region.folders import check_place
from kohort.spark.region.pinned import Pinned, query_of
from kohort.spark.region.query_factory import Build, BuiltQuery, look
from kohort.spark.region.query_run import LEAD, RegionQuery
from kohort.spark.region.query_spec import PINNED, Declared, QuerySettings, Source, check_sink, check_state, declare
from kohort.spark.region.query_state import SavedQuery, refuse_other
from kohort.spark.region.query_thread import CLOSING, QueryThread
from kohort.spark.region.staging import QueryOutput
from kohort.spark.source.catalog import Catalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# -- How a program that runs a region is stopped from outside: by SIGINT (Ctrl-C) and SIGTERM
#
# PySpark's own answer to SIGINT is to cancel all jobs, which fails the batches that run: from there a region can only
# go back. So the first signal is only noted, and batches are finished; a second one ends the program as it would
# without us.

log = logging.getLogger("kohort.spark")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Notes signals while it is entered; outside the main thread none comes."""

    def __init__(self) -> None:
        self._noted = False
        self._before: dict[signal.Signals, Any] = {}

    def is_set(self) -> bool:
        """Whether one has come."""
        return self._noted

    def _note(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._restore()
        self._noted = True
        log.info("%s: the region is left with a last sequence", signal.Signals(number).name)

    def _restore(self) -> None:
        while self._before:
            which, before = self._before.popitem()
            signal.signal(which, signal.SIG_DFL if before is None else before)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {one: signal.signal(one, self._note) for one in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()


# -- When a job that runs now and then is done: all that was there when it began is published

Ends = Mapping[tuple[str, str, int], int]
"""Where partitions end, by group, topic and partition."""


def present_ends(queries: Iterable[Declared]) -> Ends:
    """Where the partitions that these queries read end now; of one that is pinned, its own alone.

    Raises:
        KafkaError: they can't be asked for.
    """
    ends: dict[tuple[str, str, int], int] = {}
    for query in queries:
        for _, options in query.sources:
            catalog = Catalog(options)
            try:
                found = catalog.ends(catalog.partitions(known=None))
            finally:
                catalog.close()
            ends |= {
                (str(options.group_id), at.topic, at.partition): end
                for at, end in found.items()
                if not query.queries or query_of(at.topic, at.partition, query.queries) == query.name
            }
    return ends


def caught_up(seen: RegionSeen, ends: Ends) -> bool:
    """Whether all up to there is in sequences that the sinks show."""
    at = {(one.group, one.topic, one.partition): one.offset for one in seen.positions}
    return seen.published >= seen.sequence and all(at.get(part, 0) >= end for part, end in ends.items())


CAUGHT_UP = "caught-up"
LOOK_S = 0.2
LEAVE_S = 60.0
ASK_S = 1.0
"""How often a sequence is asked for that is not due, when a job that is to catch up has nothing to read."""


class SparkRegionSettings(ConnectionSettings, total=False):
    """Options of `SparkRegion`; beside these, how the cluster is reached: Kafka's names with `_` for `.`.

    Attributes:
        checkpoint_every: how often a sequence is begun, by default '5s'; None: only when asked.
        serves: whether this process may be the control plane.
        host: where the control plane listens, if it comes to be here; by default on loopback.
        metrics_listen: HOST:PORT where Prometheus reads.
    """

    checkpoint_every: str | None
    serves: bool
    host: str
    metrics_listen: str | None


class SparkRegion:
    """Spark queries that take checkpoints and go back together, so that what they write is exact.

        region = SparkRegion(spark, "flights", servers, folder="/data/regions", checkpoint_every="5s")
        region.query("delays", lambda flights: flights.selectExpr("CAST(value AS STRING) AS line"),
                     source={"subscribe": "flights", "group.id": "etl"}, into=ParquetFolder("/data/delays"))
        region.run()

    Every application of a region makes one of the same name, with queries of other names, and the same folder.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        bootstrap_servers: Servers = None,
        *,
        folder: str | Path,
        **settings: Unpack[SparkRegionSettings],
    ) -> None:
        """Connects with `start` or `run`.

        Args:
            spark: a session of Spark in this process; not Spark Connect.
            name: of the region, the same in all its applications.
            bootstrap_servers: HOST:PORT, several with commas between or as a list.
            folder: where the queries' checkpoints are, of this machine or mounted, with hard links.
            **settings: see `SparkRegionSettings`.

        Raises:
            InvalidInputError: what can't be.
        """
        if not hasattr(spark, "_jsparkSession"):
            raise InvalidInputError(
                "a region's queries are started and stopped by the program that has them, and their folders are its "
                "own: that can't be done on Spark Connect; run the program where the driver runs"
            )
        self._spark = spark
        self._region = Region(name, bootstrap_servers, **settings)
        self._connection = bootstrap_servers, {key: value for key, value in settings.items() if key not in _OWN}
        self._folder = f"{check_place(str(folder))}/{name}"
        self._declared: dict[str, Declared] = {}
        self._running: dict[str, _Started] = {}
        self._lock = threading.RLock()  # a handler may close the region while this thread holds it
        self._closed = threading.Event()

    @property
    def name(self) -> str:
        """The region's."""
        return self._region.name

    @property
    def metrics_address(self) -> str | None:
        """HOST:PORT where Prometheus reads; None: nowhere."""
        return self._region.metrics_address

    # -- queries

    def query(
        self,
        name: str,
        build: Build,
        *,
        source: Source | Sequence[Source],
        into: Sink,
        **options: Unpack[QuerySettings],
    ) -> None:
        """Declare a query; it starts with `start` or `run`.

        Args:
            name: of the query and of its member, unique in the region; it survives restarts.
            build: given the source's DataFrame (of several sources: each of theirs), gives what the sink is to take.
            source: options of the Kafka source, `subscribe` or `subscribePattern` and `group.id` among them; several
                for a join, each a member of a group of its own.
            into: where its rows go.
            **options: see `QuerySettings`.

        Raises:
            InvalidInputError: what can't be, before anything is read.
        """
        if name in self._declared:
            raise InvalidInputError(f"the region has a query {name!r} already: give each a name of its own")
        self._declared[name] = declare(name, build, source, into, options, self._connection)

    # -- running

    def start(self) -> None:
        """Start the queries that were declared and do not run: all of them, or none.

        It returns when their members are on their way; what ends one after that, `run` raises.

        Raises:
            InvalidInputError: what can't be, before the first batch.
            AnalysisException: Spark can't run such a query.
            KafkaError: a group is another region's, or has members that are not of this region; no right to do this.
        """
        with self._lock:
            for one in self._ready():
                self._begin(one)

    def _ready(self) -> list[_Started]:
        """Whatever does not run, looked through and known to the region; nobody of it is a member yet."""
        from kohort.spark import register

        if self._closed.is_set():
            raise InvalidInputError("the region is closed: make another one of its name")
        if not self._declared:
            raise InvalidInputError("the region has no query: declare one with query(...)")
        register(self._spark)
        fresh = [one for name, one in self._declared.items() if name not in self._running]
        looked = [(one, *self._look(one)) for one in fresh]
        with ExitStack() as failing:
            ready = []
            for declared, built, shares in looked:
                ready.append(self._admit(declared, built, shares))
                failing.callback(ready[-1].end)
            failing.pop_all()
        return ready

    def _look(self, declared: Declared) -> tuple[BuiltQuery, bool]:
        """What can be told without a broker."""
        raw = [options for options, _ in declared.sources]
        built = look(self._spark, declared.build, raw, declared.mode, declared.what(), declared.undecoded)
        check_sink(declared, built)
        return built, check_state(declared, built)

    def _admit(self, declared: Declared, built: BuiltQuery, shares: bool) -> _Started:
        region_id, sink, letters = UUID(int=0), declared.into, declared.letters
        for number, (_, options) in enumerate(declared.sources):
            name = declared.name if number == LEAD else f"{declared.name}#{number + 1}"
            topics = options.subscribe or ()
            who = Applicant(name, str(options.group_id), topics, options.pattern_text(), declared.reads_again)
            into, aside = (declared.into, declared.letters) if number == LEAD else (None, None)
            region_id, into, aside = self._region.admit(who, into, aside)
            sink, letters = into or sink, aside or letters
        state = self._region.state_of(declared.name)
        if state is not None:
            now = SavedQuery(-1, None, built.output, built.operators, built.sources)
            refuse_other(SavedQuery.from_bytes(state), now, declared.name)
        sink.check(built.schema)
        keeps = bool(built.operators) or built.beside
        started, folder = _Started(built.beside), f"{self._folder}/{declared.name}"
        how = behaviour(declared, shares=shares, keeps=keeps)
        started.query = RegionQuery(
            declared.name,
            built,
            QueryOutput(sink, letters, declared.divides),
            region_id,
            folder,
            lambda: started.members,
        )
        with ExitStack() as failing:
            failing.callback(started.end)
            for number in range(len(declared.sources)):
                places = tuple(place for place in (sink, letters) if place is not None) if number == LEAD else ()
                machine = self._machine(declared, number, places, how)
                started.members.append(self._member(declared, number, places, machine, started.query))
            failing.pop_all()
        return started

    def _machine(self, declared: Declared, number: int, places: Sequence[Sink], how: Behaviour) -> MemberMachine:
        at = [*map(place_of, places), "", ""]
        return MemberMachine(
            self.name,
            declared.name if number == LEAD else f"{declared.name}#{number + 1}",
            uuid4(),
            str(declared.sources[number][1].group_id),
            at[0],
            how,
            letters=at[1],
        )

    def _member(
        self, declared: Declared, number: int, places: Sequence[Sink], machine: MemberMachine, query: RegionQuery
    ) -> QueryThread:
        options = declared.sources[number][1]
        publishers = [Publisher(place, machine.name) for place in places]
        config = MemberConfig(
            options.subscribe or (), options.pattern_text(), declared.start, options.fail_on_data_loss
        )
        consumer = self._region.group_consumer(machine.name, _settings(declared, options))
        return QueryThread(machine, consumer, publishers, config, query, number)

    def _begin(self, started: _Started) -> None:
        assert started.query is not None
        self._running[started.query.name] = started
        started.query.start()
        for member in started.members:
            self._region.count_in(member)
            member.start(self._region.reach)

    def run(self, until: Literal["caught-up"] | None = None) -> None:
        """Start what was declared, and stay until it is stopped, or until all that was there at the start is published.

        SIGINT (Ctrl-C) and SIGTERM stop it with a last sequence, if this is the main thread; a second one does not wait
        for that.

        Args:
            until: 'caught-up': for jobs that are run now and then. Whatever reads beside the Kafka sources of a query
                is not waited for.

        Raises:
            InvalidInputError: what can't be, before the first batch.
            AnalysisException: Spark can't run such a query.
            RegionStoppedError: the region has stopped.
            Exception: what has ended a query for good.
        """
        if until not in (None, CAUGHT_UP):
            raise InvalidInputError(f"until={until!r}: say 'caught-up', or leave it out")
        with StopSignals() as stopping:
            try:
                self._run(stopping.is_set, until)
            except BaseException:
                self.close(gently=False)
                raise
            self.close()

    def _run(self, is_stopped: Callable[[], bool], until: str | None) -> None:
        with self._lock:
            ready = self._ready()
            try:
                targets = self._targets() if until == CAUGHT_UP else {}
                if until == CAUGHT_UP and not self._running and self._has_nothing_to_do(ready, targets):
                    for one in ready:
                        one.end()
                    return
            except BaseException:
                for one in ready:
                    one.end()
                raise
            for one in ready:
                self._begin(one)
        asked_s = time.monotonic()
        while not (self._closed.is_set() or is_stopped() or self._are_over()):
            if until == CAUGHT_UP:
                if self._has_caught_up(targets):
                    return
                if time.monotonic() > asked_s + ASK_S and self._is_idle():
                    asked_s = time.monotonic()
                    self._region.checkpoint()
            time.sleep(LOOK_S)

    def _are_over(self) -> bool:
        with self._lock:
            running = [one.query for one in self._running.values() if one.query is not None]
        over = [one for one in running if one.over.is_set()]
        for one in over:
            if one.error is not None:
                raise one.error
        return bool(running) and len(over) == len(running)

    def _is_idle(self) -> bool:
        """Whether no batch runs here: what there is may have been read, long before a sequence is due."""
        with self._lock:
            members = [member for one in self._running.values() for member in one.members]
        return all(member.seat.running() is None for member in members)

    def _targets(self) -> Ends:
        return present_ends(self._declared.values())

    def _has_nothing_to_do(self, ready: Sequence[_Started], targets: Ends) -> bool:
        return not any(one.beside for one in ready) and caught_up(self._region.describe(), targets)

    def _has_caught_up(self, targets: Ends) -> bool:
        try:
            return caught_up(self._region.describe(), targets)
        except TimedOutError as error:
            log.info("region %s: %s", self.name, error)  # another application comes to be its control plane
            return False

    # -- people

    def describe(self) -> RegionSeen:
        """The region as its control plane knows it."""
        return self._region.describe()

    def checkpoint(self) -> None:
        """Have a sequence begun."""
        self._region.checkpoint()

    def complete(self) -> int:
        """The last sequence that all sinks of the region show: who reads several of them reads up to it; 0: none.

        Raises:
            TimedOutError: the control plane does not answer.
        """
        return self._region.complete()

    def reset(
        self, cause: str = "a person asked for it", *, to_initial: bool = False, empty_sinks: bool = False
    ) -> None:
        """Have all go back to the last complete sequence, or to where the region began; see `Region.reset`."""
        self._region.reset(cause, to_initial=to_initial, empty_sinks=empty_sinks)

    # -- the end

    def close(self, *, gently: bool = True, timeout_s: float = LEAVE_S) -> None:
        """End the queries, and the control plane if it is here.

        Args:
            gently: running batches are finished and published with a last sequence; else all of the region go back.
            timeout_s: for that.
        """
        with self._lock:
            self._closed.set()
            running, self._running = list(self._running.values()), {}
        for one in running:
            one.leave() if gently else one.abandon()
        until_s = time.monotonic() + timeout_s
        with ExitStack() as closing:
            closing.callback(self._region.close)
            for one in running:
                closing.callback(one.join, until_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(gently=error is None)


_OWN = SparkRegionSettings.__annotations__.keys() - ConnectionSettings.__annotations__.keys()


class _Started:
    """A query that runs, with its members."""

    def __init__(self, beside: bool) -> None:
        self.beside = beside
        self.members: list[QueryThread] = []
        self.query: RegionQuery | None = None

    def leave(self) -> None:
        """Leave with the next complete sequence."""
        for member in self.members:
            member.seat.hold(CLOSING)  # else a batch of one may begin when another has said that it leaves
        for member in self.members:
            member.leave()

    def abandon(self) -> None:
        """End without a word: to the region its members are dead."""
        for member in self.members:
            member.abandon()

    def end(self) -> None:
        """End what never began: nobody has heard of it."""
        for member in self.members:
            member.discard()

    def join(self, until_s: float) -> None:
        """Wait for the end; who is late is abandoned."""
        for member in self.members:
            if member.thread.is_alive():
                member.thread.join(max(0.0, until_s - time.monotonic()))
            if member.thread.is_alive():
                log.warning("%s: no sequence was complete in time: all go back", member.name)
                member.abandon()
                member.thread.join()
        if self.query is not None:
            self.query.close()


def behaviour(declared: Declared, *, shares: bool, keeps: bool) -> Behaviour:
    """How the members of a query take part, the same for all of its sources: they are one in everything.

    Args:
        declared: the query.
        shares: its state moves with partitions, or it has none.
        keeps: its state waits for it while it is away; so does each of its groups.
    """
    sources = len(declared.sources)
    of = uuid4().hex if sources > 1 else ""
    return Behaviour(declared.holds_back, True, shares, keeps, of, sources, declared.queries)


def write_region(region: SparkRegion, name: str, build: Build, into: Sink, source: Source | Sequence[Source]) -> None:
    """`region.query` as a function: declare a query with what it needs, and the defaults for the rest."""
    region.query(name, build, source=source, into=into)


def _settings(declared: Declared, options: SourceOptions) -> dict[str, Any]:
    """Of the consumer that is a source's member."""
    told: dict[str, Any] = client_settings(options)
    del told["client.id"]  # the region's: by it members are known
    settings = {key.replace(".", "_"): value for key, value in told.items()}
    settings |= {"group_id": options.group_id, "group_protocol": options.group_protocol}
    if declared.state == PINNED:
        settings["partition_assignment_strategy"] = [Pinned(declared.name, declared.queries)]
    return settings
