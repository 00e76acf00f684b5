"""A consistent region of Spark queries: the face of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack
from uuid import UUID, uuid4

from kohort.client.setting_types import ConnectionSettings
from kohort.client.settings import Servers
from kohort.errors import InvalidInputError
from kohort.region.consuming.publishing import Publisher
from kohort.region.consuming.settings import MemberConfig
from kohort.region.consuming.starts import start_of
from kohort.region.member.machine import MemberMachine
from kohort.region.messages import RegionSeen
from kohort.region.region import Region
from kohort.region.sinks import Sink
from kohort.region.staged import check_member
from kohort.spark.options import SourceOptions, client_settings, parse_options
from kohort.spark.region import folders
from kohort.spark.region.built import Build, BuiltQuery, look
from kohort.spark.region.pinned import Pinned
from kohort.spark.region.query_thread import QueryThread
from kohort.spark.region.runs import LEAD, RegionQuery
from kohort.spark.region.seats import SEATS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("kohort.spark")

SEAT = "regionSeat"
REFUSED = {
    "region": "queries of a region are started by SparkRegion",
    SEAT.lower(): "SparkRegion sets it",
    "assign": "which partitions a query reads is its group's choice: subscribe",
    "startingoffsets": "say where a region begins with start=",
    "startingtimestamp": "say where a region begins with start=",
    "startingoffsetsbytimestamp": "say where a region begins with start=",
    "plannedranges": "a region goes back as a whole",
    "onrevocationtimeout": "a region goes back as a whole",
}
"""Options of a source that a region decides, in lower case, each with what to do instead."""
CAUGHT_UP, PARTIAL, PINNED = "caught-up", "partial", "pinned"
LOOK_S = 0.2
LEAVE_S = 60.0
Source = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Declared:
    """A query as it was declared, before anything connects."""

    name: str
    build: Build
    sources: tuple[tuple[dict[str, str], SourceOptions], ...]
    into: Sink
    start: str | int
    holds_back: bool
    mode: str
    state: str | None
    queries: tuple[str, ...]


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
        checkpoint_every: str | None = "5s",
        serves: bool = True,
        host: str = "127.0.0.1",
        metrics_listen: str | None = None,
        **settings: Unpack[ConnectionSettings],
    ) -> None:
        """Connects with `start` or `run`.

        Args:
            spark: a session of Spark in this process; not Spark Connect.
            name: of the region, the same in all its applications.
            bootstrap_servers: HOST:PORT, several with commas between or as a list.
            folder: where the queries' checkpoints are, of this machine or mounted, with hard links.
            checkpoint_every: how often a sequence is begun; None: only when asked.
            serves: whether this process may be the control plane.
            host: where the control plane listens, if it comes to be here.
            metrics_listen: HOST:PORT where Prometheus reads.
            **settings: how the cluster is reached: Kafka's names with `_` for `.`.

        Raises:
            InvalidInputError: what can't be.
        """
        if not hasattr(spark, "_jsparkSession"):
            raise InvalidInputError(
                "a region's queries are started and stopped by the program that has them, and their folders are its "
                "own: that can't be done on Spark Connect; run the program where the driver runs"
            )
        self._spark, self._servers, self._settings = spark, bootstrap_servers, settings
        self._region = Region(
            name,
            bootstrap_servers,
            checkpoint_every=checkpoint_every,
            serves=serves,
            host=host,
            metrics_listen=metrics_listen,
            **settings,
        )
        self._folder = folders.check_place(folder) / name
        self._declared: dict[str, _Declared] = {}
        self._running: dict[str, _Started] = {}

    @property
    def name(self) -> str:
        """The region's."""
        return self._region.name

    # -- queries

    def query(
        self,
        name: str,
        build: Build,
        *,
        source: Source | Sequence[Source],
        into: Sink,
        start: str | int = "committed",
        on_rebalance: Literal["checkpoint", "reset"] = "checkpoint",
        output_mode: Literal["append", "update"] = "append",
        state: Literal["partial", "pinned"] | None = None,
        queries: Sequence[str] = (),
    ) -> None:
        """Declare a query; it starts with `start` or `run`.

        Args:
            name: of the query and of its member, unique in the region; it survives restarts.
            build: given the source's DataFrame (of several sources: each of theirs), gives what the sink is to take.
            source: options of the Kafka source, `subscribe` or `subscribePattern` and `group.id` among them; several
                for a join, each a member of a group of its own.
            into: where its rows go.
            start: where partitions begin that the region has never read: 'beginning', 'end', 'committed' (else the
                beginning) or a time in ms since the epoch.
            on_rebalance: 'checkpoint': who must give up partitions does so with the next sequence; 'reset': all go
                back.
            output_mode: 'update' for a sink that replaces rows by their keys.
            state: of a query that keeps state and shares its group: 'partial': its results are parts, which whoever
                reads adds up; 'pinned': a partition belongs to one of `queries` for ever, and waits for it.
            queries: with 'pinned', the names of all queries of the group, this one too; they never change.

        Raises:
            InvalidInputError: what can't be, before anything is read.
        """
        check_member(name)
        if name in self._declared:
            raise InvalidInputError(f"the region has a query {name!r} already: give each a name of its own")
        if "#" in name:
            raise InvalidInputError(f"the query's name {name!r} holds '#', which names the sources of one query")
        if on_rebalance not in ("checkpoint", "reset"):
            raise InvalidInputError(f"on_rebalance={on_rebalance!r}: say 'checkpoint' or 'reset'")
        if output_mode not in ("append", "update"):
            raise InvalidInputError(
                f"output_mode={output_mode!r}: append, or update for a sink with keys; 'complete' writes the whole "
                "result each time, which no sequence can hold"
            )
        start_of(start, "earliest")
        _check_pinned(name, state, queries)
        given = [source] if isinstance(source, Mapping) else list(source)
        if not given:
            raise InvalidInputError(f"the query {name!r} has no source")
        sources = tuple(self._options(one) for one in given)
        groups = [options.group_id for _, options in sources]
        if len(set(groups)) < len(groups):
            raise InvalidInputError(
                f"two sources of the query {name!r} are in one group, which would give each a part of the topics: "
                "give each a group.id of its own"
            )
        self._declared[name] = _Declared(
            name, build, sources, into, start, on_rebalance == "checkpoint", output_mode, state, tuple(sorted(queries))
        )

    def _options(self, source: Source) -> tuple[dict[str, str], SourceOptions]:
        raw = {key: str(value) for key, value in source.items()}
        for key in raw:
            if key.lower() in REFUSED:
                raise InvalidInputError(f"the option {key} has no place in a region: {REFUSED[key.lower()]}")
        if "kafka.bootstrap.servers" not in raw:
            raw["kafka.bootstrap.servers"] = _addresses(self._servers)
        raw |= {
            f"kafka.{key.replace('_', '.')}": str(value)
            for key, value in self._settings.items()
            if f"kafka.{key.replace('_', '.')}" not in raw
        }
        options = parse_options(raw, streaming=True)
        if not options.group_id:
            raise InvalidInputError("a query of a region is a member of a group: give its source the option group.id")
        return raw, options

    # -- running

    def start(self) -> None:
        """Start the queries that were declared and do not run; returns when their members are on their way.

        Raises:
            InvalidInputError: what can't be, before the first batch.
            KafkaError: a group is another region's, or has members that are not of this region; no right to do this.
        """
        from kohort.spark import register

        if not self._declared:
            raise InvalidInputError("the region has no query: declare one with query(...)")
        register(self._spark)
        for declared in self._declared.values():
            if declared.name not in self._running:
                self._running[declared.name] = self._start(declared)

    def _start(self, declared: _Declared) -> _Started:
        seats = [uuid4().hex for _ in declared.sources]
        raw = [{**options, SEAT: seat} for (options, _), seat in zip(declared.sources, seats, strict=True)]
        what = [_what(options, declared.queries) for _, options in declared.sources]
        built = look(self._spark, declared.build, raw, declared.mode, what)
        _check_state(declared, built)
        started = _Started(seats)
        try:
            self._begin(declared, built, started)
        except BaseException:
            started.abandon()
            raise
        return started

    def _begin(self, declared: _Declared, built: BuiltQuery, started: _Started) -> None:
        region_id, sink = UUID(int=0), declared.into
        for number, (_, options) in enumerate(declared.sources):
            region_id, bound = self._region.admit(str(options.group_id), declared.into if number == LEAD else None)
            sink = bound or sink
        sink.check(built.schema)
        query = RegionQuery(
            declared.name, built, sink, region_id, self._folder / declared.name, lambda: started.members
        )
        started.query = query
        for number, (_, options) in enumerate(declared.sources):
            started.members.append(self._member(declared, options, number, query, sink))
        for seat, member in zip(started.seats, started.members, strict=True):
            SEATS.add(seat, member.seat)
        query.start()
        for member in started.members:
            member.start(self._region.reach)

    def _member(
        self, declared: _Declared, options: SourceOptions, number: int, query: RegionQuery, sink: Sink
    ) -> QueryThread:
        name = declared.name if number == LEAD else f"{declared.name}#{number + 1}"
        group = str(options.group_id)
        settings: dict[str, Any] = client_settings(options)
        settings.pop("client.id", None)
        settings = {key.replace(".", "_"): value for key, value in settings.items()}
        settings |= {"group_id": group, "group_protocol": options.group_protocol}
        if declared.state == PINNED:
            if options.group_protocol != "classic":
                raise InvalidInputError(
                    "state='pinned' needs group.protocol=classic: in the other the broker divides the partitions"
                )
            settings["partition_assignment_strategy"] = [Pinned(declared.name, declared.queries)]
        machine = MemberMachine(
            self.name, name, uuid4(), group, publishes=number == LEAD, holds_back=declared.holds_back
        )
        config = MemberConfig(
            tuple(options.subscribe or ()), options.subscribe_pattern, start_of(declared.start, "earliest"),
            options.fail_on_data_loss,
        )  # fmt: skip
        publisher = Publisher(sink, name) if number == LEAD else None
        consumer = self._region.group_consumer(name, settings)
        return QueryThread(machine, consumer, publisher, config, query, number)

    def run(self, until: Literal["caught-up"] | None = None) -> None:
        """Start what was declared, and stay until it is stopped, or until all that was there at the start is published.

        Args:
            until: 'caught-up': for jobs that are run now and then.

        Raises:
            RegionStoppedError: the region has stopped.
            Exception: what has ended a query for good.
        """
        if until not in (None, CAUGHT_UP):
            raise InvalidInputError(f"until={until!r}: say 'caught-up', or leave it out")
        self.start()
        targets = self._present_ends() if until == CAUGHT_UP else {}
        try:
            while not self._are_over():
                if until == CAUGHT_UP and self._has_caught_up(targets):
                    break
                time.sleep(LOOK_S)
        except BaseException:
            self.close(gently=False)
            raise
        self.close()

    def _are_over(self) -> bool:
        over = [one for one in self._running.values() if one.query is not None and one.query.over.is_set()]
        for one in over:
            if one.query is not None and one.query.error is not None:
                raise one.query.error
        return bool(self._running) and len(over) == len(self._running)

    def _present_ends(self) -> dict[tuple[str, str, int], int]:
        """Where the partitions that the queries read end now, by group."""
        from kohort.spark.catalog import Catalog

        ends: dict[tuple[str, str, int], int] = {}
        for declared in self._declared.values():
            for _, options in declared.sources:
                catalog = Catalog(options)
                try:
                    found = catalog.ends(catalog.partitions(known=None))
                finally:
                    catalog.close()
                ends |= {(str(options.group_id), at.topic, at.partition): end for at, end in found.items()}
        return ends

    def _has_caught_up(self, targets: Mapping[tuple[str, str, int], int]) -> bool:
        seen = self._region.describe()
        at = {(one.group, one.topic, one.partition): one.offset for one in seen.positions}
        return seen.published >= seen.sequence and all(at.get(part, 0) >= end for part, end in targets.items())

    # -- people

    def describe(self) -> RegionSeen:
        """The region as its control plane knows it."""
        return self._region.describe()

    def checkpoint(self) -> None:
        """Have a sequence begun."""
        self._region.checkpoint()

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
        for one in self._running.values():
            one.leave() if gently else one.abandon()
        until_s = time.monotonic() + timeout_s
        for one in self._running.values():
            one.join(until_s)
        self._running.clear()
        self._region.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(gently=error is None)


class _Started:
    """A query that runs, with its members and their seats."""

    def __init__(self, seats: list[str]) -> None:
        self.seats = seats
        self.members: list[QueryThread] = []
        self.query: RegionQuery | None = None

    def leave(self) -> None:
        """Leave with the next complete sequence."""
        for member in self.members:
            member.leave()

    def abandon(self) -> None:
        """End without a word: to the region its members are dead."""
        for member in self.members:
            member.abandon()

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
        for seat in self.seats:
            SEATS.remove(seat)


def _check_state(declared: _Declared, built: BuiltQuery) -> None:
    if declared.state == PARTIAL and (built.watermark or set(built.operators) - {"aggregation"}):
        found = ", ".join(built.operators) + (" with a watermark" if built.watermark else "")
        raise InvalidInputError(
            f"state='partial' is for aggregations without a watermark, whose parts can be added up, not for {found}: "
            "rows of a partition that has moved are late, or miss their pairs; give the query a group of its own"
        )


def _check_pinned(name: str, state: str | None, queries: Sequence[str]) -> None:
    if state not in (None, PARTIAL, PINNED):
        raise InvalidInputError(f"state={state!r}: say 'partial' or 'pinned', or leave it out")
    if (state == PINNED) != bool(queries):
        raise InvalidInputError("state='pinned' and queries=[...], the names of all queries of the group, go together")
    if queries and (isinstance(queries, str) or name not in queries or len(set(queries)) < len(queries)):
        raise InvalidInputError(f"queries={queries!r} are names, each once, and {name!r} is one of them")


def _what(options: SourceOptions, queries: Sequence[str]) -> str:
    """What a source reads, for people and for the next program."""
    topics = ", ".join(options.subscribe) if options.subscribe else f"topics like {options.subscribe_pattern}"
    return f"{topics}, pinned among {', '.join(queries)}" if queries else topics


def _addresses(servers: Servers) -> str:
    if servers is None:
        return "127.0.0.1:9092"
    return servers if isinstance(servers, str) else ",".join(map(str, servers))
