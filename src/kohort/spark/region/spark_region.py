"""A consistent region of Spark queries: the face of it."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, Self, Unpack
from uuid import UUID, uuid4

from kohort.client.setting_types import ConnectionSettings
from kohort.client.settings import Servers
from kohort.errors import InvalidInputError
from kohort.region.consuming.publishing import Publisher
from kohort.region.consuming.settings import MemberConfig
from kohort.region.member.machine import MemberMachine
from kohort.region.member.state import Behaviour
from kohort.region.messages import RegionSeen
from kohort.region.region import Region
from kohort.region.sinks import Sink, place_of
from kohort.spark.options import SourceOptions, client_settings
from kohort.spark.region.built import Build, BuiltQuery, look
from kohort.spark.region.declared import PINNED, Declared, QuerySettings, Source, check_state, declare
from kohort.spark.region.folders import check_place
from kohort.spark.region.pinned import Pinned
from kohort.spark.region.query_thread import QueryThread
from kohort.spark.region.runs import LEAD, RegionQuery

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("kohort.spark")

CAUGHT_UP = "caught-up"
LOOK_S = 0.2
LEAVE_S = 60.0


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

    def _start(self, declared: Declared) -> _Started:
        raw = [options for options, _ in declared.sources]
        built = look(self._spark, declared.build, raw, declared.mode, declared.what())
        shares = check_state(declared, built)
        started = _Started()
        try:
            self._begin(declared, built, started, shares)
        except BaseException:
            started.abandon()
            raise
        return started

    def _begin(self, declared: Declared, built: BuiltQuery, started: _Started, shares: bool) -> None:
        region_id, sink = UUID(int=0), declared.into
        for number, (_, options) in enumerate(declared.sources):
            region_id, bound = self._region.admit(str(options.group_id), declared.into if number == LEAD else None)
            sink = bound or sink
        sink.check(built.schema)
        query = RegionQuery(
            declared.name, built, sink, region_id, f"{self._folder}/{declared.name}", lambda: started.members
        )
        started.query = query
        for number, (_, options) in enumerate(declared.sources):
            name = declared.name if number == LEAD else f"{declared.name}#{number + 1}"
            place = place_of(sink) if number == LEAD else ""
            machine = MemberMachine(
                self.name,
                name,
                uuid4(),
                str(options.group_id),
                place,
                Behaviour(holds_back=declared.holds_back, reads_on=True, shares=shares),
            )
            publisher = Publisher(sink, name) if number == LEAD else None
            consumer = self._region.group_consumer(name, _settings(declared, options))
            config = MemberConfig(
                options.subscribe or (), options.subscribe_pattern, declared.start, options.fail_on_data_loss
            )
            started.members.append(QueryThread(machine, consumer, publisher, config, query, number))
        query.start()
        for member in started.members:
            member.start(self._region.reach)

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


_OWN = SparkRegionSettings.__annotations__.keys() - ConnectionSettings.__annotations__.keys()


class _Started:
    """A query that runs, with its members."""

    def __init__(self) -> None:
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
