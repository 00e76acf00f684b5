"""`SparkRegion`, the interface to a consistent region of Spark queries."""

from __future__ import annotations

import logging
import signal
import threading
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack
from uuid import UUID, uuid4

import msgspec

from kohort.assignors.claims import settled_claims
from kohort.assignors.shapes import AssignableTopic, Assignment, MemberSubscription, Stateless
from kohort.client.setting_types import ConnectionSettings
from kohort.client.settings import ConsumerConfig, Servers
from kohort.errors import InvalidInputError, TimedOutError
from kohort.ids import MemberId, TopicPartition
from kohort.region.admission import Applicant
from kohort.region.consuming.publishing import SinkPublisher
from kohort.region.consuming.settings import MemberConfig
from kohort.region.member.machine import MemberMachine
from kohort.region.member.state import MemberBehaviour
from kohort.region.messages import RegionStatus
from kohort.region.region import Region
from kohort.region.sinks import Sink, name_of_sink
from kohort.settings.config import by_field_name
from kohort.spark.options import SourceOptions, client_settings
from kohort.spark.region.folders import TemporaryCheckpoints, check_checkpoint_folder
from kohort.spark.region.query_factory import Build, BuiltQuery, check_query_plan
from kohort.spark.region.query_run import LEAD, RegionQuery
from kohort.spark.region.query_spec import (
    PINNED,
    DeclaredQuery,
    QuerySettings,
    Source,
    check_can_share_group,
    check_query_arguments,
    check_runs_without_folder,
    check_sink_takes_query,
)
from kohort.spark.region.query_state import SavedQuery, refuse_changed_query
from kohort.spark.region.query_thread import CLOSING, SourceMemberThread
from kohort.spark.region.staging import QueryOutput
from kohort.spark.source.catalog import TopicCatalog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


# -- An assignor for queries whose state belongs to their partitions: a partition has the same query for ever.
#
# The names of a group's queries never change, and a partition's number determines its query. So nothing has to be
# remembered, and an added partition does not move the earlier ones. The partitions of an absent query wait for it.
#
# Source: spec 3.3, 6.2.


class _PinnedQuery(msgspec.Struct):
    """The user data in a pinned member's subscription: its query's name, and those of all queries of the group."""

    query: str
    queries: tuple[str, ...]


class PinnedAssignor(Stateless):
    """An assignor for queries with state='pinned': a hash fixes the query of each partition (`pinned_query_of`).

    Partitions whose query has no member are assigned to nobody.
    """

    name = "kohort-pinned"
    cooperative = True

    def __init__(self, query: str, queries: Sequence[str]) -> None:
        """Set up the assignor of the member that runs `query`, one of all `queries` of the group."""
        self._query, self._queries = query, tuple(sorted(queries))

    def subscription_user_data(self, topics: Sequence[str]) -> bytes | None:
        """Return the member's query and the list of all queries, as JSON."""
        return msgspec.json.encode(_PinnedQuery(self._query, self._queries))

    def assign(
        self, members: Mapping[MemberId, MemberSubscription], topics: Mapping[str, AssignableTopic]
    ) -> Assignment:
        """Assign each partition to the member that runs its query.

        Of two members with the same query, as after a crash, the one with the greater id gets nothing.

        Raises:
            InvalidInputError: the members do not agree on the queries.
        """
        named = self._by_query(members)
        held = {partition: member for member, parts in settled_claims(members, topics).items() for partition in parts}
        result: Assignment = {member: [] for member in sorted(members)}
        for topic, info in sorted(topics.items()):
            for number in range(info.partitions):
                member = named.get(pinned_query_of(topic, number, self._queries))
                if member is None or topic not in members[member].topics:
                    continue
                partition = TopicPartition(topic, number)
                if held.get(partition, member) == member:  # otherwise its owner releases it first
                    result[member].append(partition)
        return result

    def _by_query(self, members: Mapping[MemberId, MemberSubscription]) -> dict[str, MemberId]:
        found: dict[str, MemberId] = {}
        for member in sorted(members):
            try:
                pinned = msgspec.json.decode(members[member].user_data or b"", type=_PinnedQuery)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise InvalidInputError(f"member {member} of the group is no query that is pinned") from error
            if pinned.queries != self._queries:
                raise InvalidInputError(
                    f"the queries of the group do not agree on who there is: {self._query} says "
                    f"{', '.join(self._queries)}, and {pinned.query} says {', '.join(pinned.queries)}"
                )
            found.setdefault(pinned.query, member)
        return found


def pinned_query_of(topic: str, partition: int, queries: Sequence[str]) -> str:
    """Return the name of the query to which a partition is pinned, by a hash over the group's sorted query names."""
    return queries[(zlib.crc32(topic.encode()) + partition) % len(queries)]


# -- Stop signals: SIGINT (Ctrl-C) and SIGTERM
#
# On SIGINT, PySpark cancels all jobs, which fails the running batches: a region could only reset from there. So the
# first signal is only recorded, and batches are finished. A second one ends the program as it would without kohort.

log = logging.getLogger("kohort.spark")

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """A context manager that records stop signals; outside the main thread it receives none."""

    def __init__(self) -> None:
        self._received = False
        self._before: dict[signal.Signals, Any] = {}

    def is_set(self) -> bool:
        """Return whether a stop signal has come."""
        return self._received

    def _receive(self, number: int, frame: FrameType | None) -> None:
        del frame
        self._restore()
        self._received = True
        log.info("signal %s received: leaving the region after a last checkpoint", signal.Signals(number).name)

    def _restore(self) -> None:
        while self._before:
            which, before = self._before.popitem()
            signal.signal(which, signal.SIG_DFL if before is None else before)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in SIGNALS}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()


# -- The end of a job that runs now and then: everything that was there at its start is published

Ends = Mapping[tuple[str, str, int], int]
"""End offsets of partitions, by group, topic and partition."""


def current_end_offsets(queries: Iterable[DeclaredQuery]) -> Ends:
    """Return the current end offsets of the partitions that these queries read.

    For a pinned query these are only the partitions that are pinned to it.

    Raises:
        KafkaError: the offsets can't be read.
    """
    ends: dict[tuple[str, str, int], int] = {}
    for query in queries:
        for _, options in query.sources:
            catalog = TopicCatalog(options)
            try:
                found = catalog.end_offsets(catalog.partitions(known=None))
            finally:
                catalog.close()
            ends |= {
                (str(options.group_id), at.topic, at.partition): end
                for at, end in found.items()
                if not query.queries or pinned_query_of(at.topic, at.partition, query.queries) == query.name
            }
    return ends


def has_published_up_to(seen: RegionStatus, ends: Ends) -> bool:
    """Return whether everything up to these offsets is in region checkpoints, and all sinks have published these."""
    at = {(end.group, end.topic, end.partition): end.offset for end in seen.positions}
    return seen.published >= seen.sequence and all(at.get(part, 0) >= end for part, end in ends.items())


CAUGHT_UP = "caught-up"
CHECK_INTERVAL_S = 0.2
LEAVE_TIMEOUT_S = 60.0
REQUEST_INTERVAL_S = 1.0
"""Interval at which a job that is to catch up asks for a region checkpoint ahead of time, when it has nothing to read.
"""


class SparkRegionSettings(ConnectionSettings, total=False):
    """Options of `SparkRegion`; besides these, the connection settings: Kafka's names with `_` for `.`.

    Attributes:
        checkpoint_every: interval between region checkpoints, by default '5s'; None: only on request.
        serves: whether this process may be the control plane.
        host: the address that the control plane listens on if it runs here; by default loopback.
        key: the secret of the region's processes; by default `$KOHORT_REGION_KEY`, else this user's on this machine.
        metrics_listen: HOST:PORT of the Prometheus endpoint; beyond loopback it needs `metrics_tls` with
            `metrics_client_ca`, or `metrics_insecure`.
        metrics_tls: a PEM file of a private key and certificates: metrics are encrypted.
        metrics_client_ca: a PEM file of authorities: clients must show a certificate that one of them has issued.
        metrics_insecure: everyone may read metrics, also from other machines.
    """

    checkpoint_every: str | None
    serves: bool
    host: str
    key: str | None
    metrics_listen: str | None
    metrics_tls: str | Path | None
    metrics_client_ca: str | Path | None
    metrics_insecure: bool


class SparkRegion:
    """Spark queries that take checkpoints and reset together, so that each record counts exactly once in their sinks.

        region = SparkRegion(spark, "flights", servers, checkpoint_every="5s")
        region.query("delays", lambda flights: flights.selectExpr("CAST(value AS STRING) AS line"),
                     source={"subscribe": "flights", "group.id": "etl"}, into=ParquetFolder("/data/delays"))
        region.run()

    Every application of a region creates one with the same name, and with queries of other names.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        bootstrap_servers: Servers = None,
        *,
        folder: str | Path | None = None,
        **settings: Unpack[SparkRegionSettings],
    ) -> None:
        """Set up the region; it connects with `start` or `run`.

        Args:
            spark: a Spark session in this process; not Spark Connect.
            name: the region's name, the same in all its applications.
            bootstrap_servers: HOST:PORT, several separated by commas or as a list.
            folder: the folder of the queries' checkpoints, local or mounted, with hard links. Queries that keep state
                need one that the next driver sees too. None: a temporary folder on this machine, for queries without
                state; the next driver may run on another machine.
            **settings: see `SparkRegionSettings`.

        Raises:
            InvalidInputError: an argument is invalid.
        """
        if not hasattr(spark, "_jsparkSession"):
            raise InvalidInputError(
                "a region's queries are started and stopped by the program that has them, and their folders are its "
                "own: that can't be done on Spark Connect; run the program where the driver runs"
            )
        self._spark = spark
        self._region = Region(name, bootstrap_servers, **settings)
        self._connection = bootstrap_servers, {key: value for key, value in settings.items() if key not in _OWN}
        self._folder = None if folder is None else f"{check_checkpoint_folder(str(folder))}/{name}"
        self._temporary: TemporaryCheckpoints | None = None
        self._declared: dict[str, DeclaredQuery] = {}
        self._running: dict[str, StartedQuery] = {}
        self._lock = threading.RLock()  # a signal handler may close the region while this thread holds the lock
        self._closed = threading.Event()

    @property
    def name(self) -> str:
        """The region's name."""
        return self._region.name

    @property
    def metrics_address(self) -> str | None:
        """HOST:PORT of the Prometheus endpoint; None if there is none."""
        return self._region.metrics_address

    # -- Queries

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
            name: the name of the query and of its member, unique in the region and the same after restarts.
            build: takes the DataFrame of each source, and returns the DataFrame for the sink.
            source: options of the Kafka source, including `subscribe` or `subscribePattern` and `group.id`; for a join
                several, each a member of its own group.
            into: the sink of its rows.
            **options: see `QuerySettings`.

        Raises:
            InvalidInputError: an argument is invalid; nothing has been read.
        """
        if name in self._declared:
            raise InvalidInputError(f"the region has a query {name!r} already: give each a name of its own")
        self._declared[name] = check_query_arguments(name, build, source, into, options, self._connection)

    # -- Running

    def start(self) -> None:
        """Start all declared queries that do not run yet, or none if one can't start.

        Return when their members have begun to join. An error that ends a query later is raised by `run`.

        Raises:
            InvalidInputError: an argument is invalid; no batch has run.
            AnalysisException: Spark can't run such a query.
            KafkaError: a group is another region's, or has members outside this region, or authorization failed.
        """
        with self._lock:
            for started in self._ready():
                self._record_running(started)

    def _ready(self) -> list[StartedQuery]:
        """Check all declared queries that do not run, and make their members; none has joined its group yet.

        Raises:
            InvalidInputError: the region is closed, or a query is invalid.
        """
        from kohort.spark.registration import register_source

        if self._closed.is_set():
            raise InvalidInputError("the region is closed: make another one of its name")
        if not self._declared:
            raise InvalidInputError("the region has no query: declare one with query(...)")
        register_source(self._spark)
        fresh = [declared for name, declared in self._declared.items() if name not in self._running]
        checked = [(declared, *self._look(declared)) for declared in fresh]
        with ExitStack() as failing:
            ready = []
            for declared, built, shares in checked:
                ready.append(self._admit(declared, built, shares))
                failing.callback(ready[-1].close_unstarted_members)
            failing.pop_all()
        return ready

    def _look(self, declared: DeclaredQuery) -> tuple[BuiltQuery, bool]:
        """Build a declared query and make the checks that need no broker."""
        raw = [options for options, _ in declared.sources]
        built = check_query_plan(
            self._spark, declared.build, raw, declared.mode, declared.describe_sources(), declared.undecoded
        )
        check_sink_takes_query(declared, built)
        if self._folder is None:
            check_runs_without_folder(declared, built)
        return built, check_can_share_group(declared, built)

    def _admit(self, declared: DeclaredQuery, built: BuiltQuery, shares: bool) -> StartedQuery:
        region_id, sink, letters = UUID(int=0), declared.into, declared.letters
        for number, (_, options) in enumerate(declared.sources):
            name = declared.name if number == LEAD else f"{declared.name}#{number + 1}"
            topics = options.subscribe or ()
            who = Applicant(name, str(options.group_id), topics, options.translated_pattern(), declared.reads_again)
            into, aside = (declared.into, declared.letters) if number == LEAD else (None, None)
            region_id, into, aside = self._region.admit(who, into, aside)
            sink, letters = into or sink, aside or letters
        state = self._region.state_of(declared.name)
        if state is not None:
            now = SavedQuery(-1, None, built.output, built.operators, built.sources, built.needs_last_checkpoint)
            refuse_changed_query(SavedQuery.from_bytes(state), now, declared.name)
        sink.check(built.schema)
        started, folder = StartedQuery(bool(built.outside)), f"{self._checkpoints()}/{declared.name}"
        how = member_behaviour(declared, shares=shares, keeps=built.needs_last_checkpoint)
        started.query = RegionQuery(
            declared.name,
            built,
            QueryOutput(sink, letters, declared.divides),
            region_id,
            folder,
            lambda: started.members,
        )
        with ExitStack() as failing:
            failing.callback(started.close_unstarted_members)
            for number in range(len(declared.sources)):
                places = tuple(output for output in (sink, letters) if output is not None) if number == LEAD else ()
                machine = self._machine(declared, number, places, how)
                started.members.append(self._member(declared, number, places, machine, started.query))
            failing.pop_all()
        return started

    def _checkpoints(self) -> str:
        """Return the folder of the queries' checkpoints; make a temporary one if the region has none."""
        if self._folder is not None:
            return self._folder
        if self._temporary is None:
            self._temporary = TemporaryCheckpoints()
        return self._temporary.path

    def _machine(
        self, declared: DeclaredQuery, number: int, places: Sequence[Sink], how: MemberBehaviour
    ) -> MemberMachine:
        at = [*map(name_of_sink, places), "", ""]
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
        self, declared: DeclaredQuery, number: int, places: Sequence[Sink], machine: MemberMachine, query: RegionQuery
    ) -> SourceMemberThread:
        options = declared.sources[number][1]
        publishers = [SinkPublisher(place, machine.name) for place in places]
        config = MemberConfig(
            options.subscribe or (), options.translated_pattern(), declared.start, options.fail_on_data_loss
        )
        consumer = self._region.create_group_consumer(machine.name, _settings(declared, options))
        return SourceMemberThread(machine, consumer, publishers, config, query, number)

    def _record_running(self, started: StartedQuery) -> None:
        assert started.query is not None
        self._running[started.query.name] = started
        started.query.start()
        for member in started.members:
            self._region.export_metrics_of(member)
            member.start(self._region.connect_to_control_plane)

    def run(self, until: Literal["caught-up"] | None = None) -> None:
        """Start the declared queries, and block until they are stopped or have caught up.

        SIGINT (Ctrl-C) and SIGTERM stop the queries after a last checkpoint, if this is the main thread. A second
        signal does not wait for it.

        Args:
            until: 'caught-up', for jobs that run now and then: return when everything that was there at the start is
                published. Sources of a query outside the region are not waited for.

        Raises:
            InvalidInputError: an argument is invalid; no batch has run.
            AnalysisException: Spark can't run such a query.
            RegionStoppedError: the region has stopped.
            Exception: the error that ended a query.
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
                    for started in ready:
                        started.close_unstarted_members()
                    return
            except BaseException:
                for started in ready:
                    started.close_unstarted_members()
                raise
            for started in ready:
                self._record_running(started)
        asked_s = time.monotonic()
        while not (self._closed.is_set() or is_stopped() or self._are_over()):
            if until == CAUGHT_UP:
                if self._has_caught_up(targets):
                    return
                if time.monotonic() > asked_s + REQUEST_INTERVAL_S and self._is_idle():
                    asked_s = time.monotonic()
                    self._region.checkpoint()
            time.sleep(CHECK_INTERVAL_S)

    def _are_over(self) -> bool:
        with self._lock:
            running = [started.query for started in self._running.values() if started.query is not None]
        over = [query for query in running if query.over.is_set()]
        for query in over:
            if query.error is not None:
                raise query.error
        return bool(running) and len(over) == len(running)

    def _is_idle(self) -> bool:
        """Return whether no query of this process is running a batch."""
        with self._lock:
            members = [member for started in self._running.values() for member in started.members]
        return all(member.assignments.running_batch() is None for member in members)

    def _targets(self) -> Ends:
        return current_end_offsets(self._declared.values())

    def _has_nothing_to_do(self, ready: Sequence[StartedQuery], targets: Ends) -> bool:
        return not any(started.reads_outside_region for started in ready) and has_published_up_to(
            self._region.describe(), targets
        )

    def _has_caught_up(self, targets: Ends) -> bool:
        try:
            return has_published_up_to(self._region.describe(), targets)
        except TimedOutError as error:
            log.info(
                "[region %s] the control plane does not answer, retrying to see whether all is read: %s",
                self.name,
                error,
            )  # another application takes over
            return False

    # -- Operations

    def describe(self) -> RegionStatus:
        """Return the region's state, as its control plane knows it."""
        return self._region.describe()

    def checkpoint(self) -> None:
        """Request a region checkpoint, and return without waiting for it; see `complete`."""
        self._region.checkpoint()

    def complete(self) -> int:
        """Return the id of the last region checkpoint that all sinks have published; 0 if there is none.

        A reader of several sinks that reads each up to this checkpoint sees them consistent.

        Raises:
            TimedOutError: the control plane does not answer.
        """
        return self._region.complete()

    def reset(
        self, cause: str = "a person asked for it", *, to_initial: bool = False, empty_sinks: bool = False
    ) -> None:
        """Reset all members to the last complete checkpoint, or to the region's initial state; see `Region.reset`."""
        self._region.reset(cause, to_initial=to_initial, empty_sinks=empty_sinks)

    # -- The end

    def close(self, *, gently: bool = True, timeout_s: float = LEAVE_TIMEOUT_S) -> None:
        """End the queries, and the region's control plane if it runs in this process.

        Args:
            gently: finish running batches and publish them with a last checkpoint; otherwise the whole region resets.
            timeout_s: the longest wait for that.
        """
        with self._lock:
            self._closed.set()
            running, self._running = list(self._running.values()), {}
        for started in running:
            started.leave() if gently else started.abandon()
        until_s = time.monotonic() + timeout_s
        with ExitStack() as closing:
            if self._temporary is not None:
                closing.callback(self._temporary.close)
            closing.callback(self._region.close)
            for started in running:
                closing.callback(started.join, until_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(gently=error is None)


_OWN = SparkRegionSettings.__annotations__.keys() - ConnectionSettings.__annotations__.keys()


class StartedQuery:
    """A started query with its members.

    Attributes:
        reads_outside_region: whether the query also reads sources outside the region.
        members: one member for each source of the query.
        query: the object that runs the query; None until the region has admitted it.
    """

    def __init__(self, reads_outside_region: bool) -> None:
        self.reads_outside_region = reads_outside_region
        self.members: list[SourceMemberThread] = []
        self.query: RegionQuery | None = None

    def leave(self) -> None:
        """Let the query's members leave the region with the next complete checkpoint."""
        for member in self.members:
            member.assignments.pause_batches(CLOSING)  # before any member leaves, so that no other begins a batch
        for member in self.members:
            member.leave_region()

    def abandon(self) -> None:
        """End the query's members without leaving the region, which resets as after a crash."""
        for member in self.members:
            member.end_without_leaving()

    def close_unstarted_members(self) -> None:
        """Discard members that never started; the region does not know them."""
        for member in self.members:
            member.close_unstarted()

    def join(self, until_s: float) -> None:
        """Wait for the members to end, and abandon those that are late."""
        for member in self.members:
            if member.thread.is_alive():
                member.thread.join(max(0.0, until_s - time.monotonic()))
            if member.thread.is_alive():
                log.warning(
                    "[member %s] abandoned at close: its last checkpoint did not complete within timeout_s; the region "
                    "resets to the previous checkpoint",
                    member.name,
                )
                member.end_without_leaving()
                member.thread.join()
        if self.query is not None:
            self.query.close()


def member_behaviour(declared: DeclaredQuery, *, shares: bool, keeps: bool) -> MemberBehaviour:
    """Return the properties that the members of a query report when they join the region, the same for all sources.

    Args:
        declared: the query.
        shares: whether other queries may be members of its group (`check_can_share_group`).
        keeps: whether the region keeps the query's state and groups for it while it does not run.
    """
    sources = len(declared.sources)
    of = uuid4().hex if sources > 1 else ""
    return MemberBehaviour(declared.holds_back, True, shares, keeps, of, sources, declared.queries)


def write_region(region: SparkRegion, name: str, build: Build, into: Sink, source: Source | Sequence[Source]) -> None:
    """Declare a query by `SparkRegion.query` with all other options at their defaults."""
    region.query(name, build, source=source, into=into)


def _settings(declared: DeclaredQuery, options: SourceOptions) -> dict[str, Any]:
    """Return the settings of the consumer that joins the group for one source of a query."""
    client: dict[str, Any] = client_settings(options)
    del client["client.id"]  # the region sets it, to identify members
    settings = by_field_name(ConsumerConfig, client)
    settings |= {"group_id": options.group_id, "group_protocol": options.group_protocol}
    if declared.state == PINNED:
        settings["partition_assignment_strategy"] = [PinnedAssignor(declared.name, declared.queries)]
    return settings
