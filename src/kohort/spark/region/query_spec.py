"""The declaration of a region's query, and the checks that need no connection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from kohort.client.settings import ConnectionConfig, Servers
from kohort.errors import InvalidInputError
from kohort.region.consuming.after_snapshot import AfterSnapshot
from kohort.region.consuming.starts import StartPosition, parse_start_option
from kohort.region.sinks import Sink
from kohort.region.sinks.dead_letters import DEAD_LETTER, FAIL, RECORD, check_dead_letters
from kohort.region.staged import check_member
from kohort.settings.config import by_property_name
from kohort.spark.options import SourceOptions, parse_options
from kohort.spark.region.query_factory import Build, BuiltQuery
from kohort.spark.schema import BAD_REASON, BAD_VALUE, column_names_of

SEAT = "regionSeat"
ELSEWHERE = "say where a region begins with start="
AS_A_WHOLE = "all queries of a region reset together"
A_FOLDER = "each run of a query has a checkpoint folder of its own, under SparkRegion(folder=...) if it keeps state"
ITS_LOGS = "a region goes back to batches by the checkpoint's logs, which must not come later than the batches"
NO_TRIGGER = (
    "batches follow each other, and a sequence is begun as SparkRegion(checkpoint_every=...) says; for a job that ends "
    "when it has caught up, run(until='caught-up')"
)
REFUSED = {
    "region": "queries of a region are started by SparkRegion",
    SEAT.lower(): "SparkRegion sets it",
    "assign": "which partitions a query reads is its group's choice: subscribe",
    "startingoffsets": ELSEWHERE,
    "startingtimestamp": ELSEWHERE,
    "startingoffsetsbytimestamp": ELSEWHERE,
    "plannedranges": AS_A_WHOLE,
    "onrevocationtimeout": AS_A_WHOLE,
    "checkpointlocation": A_FOLDER,
    "asyncprogresstrackingenabled": ITS_LOGS,
}
"""Source options that the region decides, in lower case, each with what to do instead."""
UNSUPPORTED = {
    "trigger": NO_TRIGGER,
    "available_now": NO_TRIGGER,
    "once": NO_TRIGGER,
    "processing_time": NO_TRIGGER,
    "checkpoint_location": A_FOLDER,
    "async_progress_tracking": ITS_LOGS,
}
"""Arguments that a Spark program may try to give to a query, each with what to do instead."""
PARTIAL, PINNED = "partial", "pinned"
Source = Mapping[str, str]


class QuerySettings(TypedDict, total=False):
    """Options of `SparkRegion.query`.

    Attributes:
        start: where partitions begin that the region has never read: 'beginning', 'end', 'committed' (the default;
            without a committed offset the beginning) or a time in ms since the epoch.
        on_rebalance: 'checkpoint': revoked partitions are released with the next region checkpoint; 'reset': the region
            resets.
        output_mode: 'append', or 'update' for a sink that replaces rows by their keys.
        state: for a query that keeps state and shares its group. 'partial': its results are parts, which the reader
            adds up; 'pinned': a partition belongs to one of `queries` for ever, and waits for it.
        queries: with 'pinned', the names of all queries of the group, including this one; they never change.
        reads_again: whether a group that is new to the region may read topics that another of its groups has read into
            the same sink, which then has their records twice. Refused by default, because a changed `group.id` has this
            effect.
        on_bad_record: what happens to a row that the sink can't take, and to a value that does not match its
            `valueFormat`. 'fail': the query fails; 'dead-letter': the row goes to `dead_letters`, and the other rows
            into the sink. A source's `onBadRecord` takes precedence for its values.
        dead_letters: the sink of such rows, with topic, partition, offset, timestamp, key and value of the record where
            the row has these columns, the row as JSON, the reason and the query's name. Queries may share one.
    """

    start: str | int | AfterSnapshot
    on_rebalance: Literal["checkpoint", "reset"]
    output_mode: Literal["append", "update"]
    state: Literal["partial", "pinned"] | None
    queries: Sequence[str]
    reads_again: bool
    on_bad_record: Literal["fail", "dead-letter"]
    dead_letters: Sink | None


@dataclass(frozen=True, slots=True)
class DeclaredQuery:
    """A declared query, before anything connects.

    Attributes:
        name: the query's name.
        build: makes the DataFrame of the query from those of its sources.
        sources: the options of each source, as given and parsed.
        into: the sink.
        start: where partitions begin that the region has never read.
        holds_back: whether revoked partitions are released with the next region checkpoint, instead of a reset.
        mode: Spark's output mode.
        state: 'partial', 'pinned' or None, as in `QuerySettings`.
        queries: for a pinned query, the names of all queries of its group.
        reads_again: whether it may read topics again that another group has read into the same sink.
        letters: the sink of its dead letters (rows that the sink can't take, and records with bad values).
        divides: whether rows that the sink can't take become dead letters; otherwise they fail the query.
        undecoded: for each source, the columns to pass to `build` if its bad values become dead letters; empty if they
            don't.
    """

    name: str
    build: Build
    sources: tuple[tuple[dict[str, str], SourceOptions], ...]
    into: Sink
    start: StartPosition
    holds_back: bool
    mode: str
    state: str | None
    queries: tuple[str, ...]
    reads_again: bool = False
    letters: Sink | None = None
    divides: bool = False
    undecoded: tuple[tuple[str, ...], ...] = ()

    def describe_sources(self) -> list[str]:
        """Return a text for each source of a query, which names the topics that it reads."""
        pinned = f", pinned among {', '.join(self.queries)}" if self.queries else ""
        return [
            (", ".join(options.subscribe) if options.subscribe else f"topics like {options.subscribe_pattern}") + pinned
            for _, options in self.sources
        ]


def check_query_arguments(
    name: str,
    build: Build,
    sources: Source | Sequence[Source],
    into: Sink,
    settings: QuerySettings,
    connection: tuple[Servers, Mapping[str, Any]],
) -> DeclaredQuery:
    """Check the arguments of `SparkRegion.query`.

    Args:
        name: the query's name.
        build: makes the DataFrame of the query from those of its sources.
        sources: the options of each source.
        into: the sink.
        settings: the other options.
        connection: the region's servers and settings, for sources that have none of their own.

    Raises:
        InvalidInputError: an argument is invalid.
    """
    check_member(name)
    unknown = sorted(settings.keys() - QuerySettings.__annotations__.keys())
    if unknown:
        reasons = "".join(f"; {UNSUPPORTED[option]}" for option in unknown if option in UNSUPPORTED)
        names = ", ".join(QuerySettings.__annotations__)
        raise InvalidInputError(f"query() knows no {', '.join(unknown)}: it knows {names}{reasons}")
    if not callable(build):
        raise InvalidInputError(
            f"the query {name!r} is built anew for each run: give a function that makes its DataFrame of its sources', "
            f"not {type(build).__name__}"
        )
    if not hasattr(into, "bind"):
        raise InvalidInputError(
            f"into={into!r} is no sink of a region: give one of kohort.region, as ParquetFolder(path), or a class of "
            "your own with the methods of kohort.region.sinks.Sink"
        )
    if "#" in name:
        raise InvalidInputError(f"the query's name {name!r} holds '#', which names the sources of one query")
    if "/" in name or name.startswith("."):
        raise InvalidInputError(
            f"the query's name {name!r} is its folder's too: without '/', and no '.' at its beginning"
        )
    bad, letters = settings.get("on_bad_record", FAIL), settings.get("dead_letters")
    check_dead_letters(bad, into, letters)
    rebalance, mode = settings.get("on_rebalance", "checkpoint"), settings.get("output_mode", "append")
    if rebalance not in ("checkpoint", "reset"):
        raise InvalidInputError(f"on_rebalance={rebalance!r}: say 'checkpoint' or 'reset'")
    if mode not in ("append", "update"):
        raise InvalidInputError(
            f"output_mode={mode!r}: append, or update for a sink with keys; 'complete' writes the whole result each "
            "time, which no sequence can hold"
        )
    state, queries = settings.get("state"), settings.get("queries", ())
    _check_pinned(name, state, queries)
    given = [sources] if isinstance(sources, Mapping) else list(sources)
    if not given:
        raise InvalidInputError(f"the query {name!r} has no source")
    parsed = tuple(_options(source, *connection) for source in given)
    undecoded = tuple(_undecoded_columns(*source) if bad == DEAD_LETTER else () for source in parsed)
    parsed = tuple(_keeping_bad_values(*source, columns) for source, columns in zip(parsed, undecoded, strict=True))
    _check_groups(name, [options.group_id for _, options in parsed])
    _check_protocols(state, [options.group_protocol for _, options in parsed])
    start = parse_start_option(settings.get("start", "committed"), "earliest")
    holds_back = rebalance == "checkpoint"
    again = settings.get("reads_again", False)
    return DeclaredQuery(
        name, build, parsed, into, start, holds_back, mode, state, tuple(sorted(queries)), again, letters,
        bad == DEAD_LETTER, undecoded,
    )  # fmt: skip


def _check_groups(name: str, groups: Sequence[str | None]) -> None:
    if len(set(groups)) < len(groups):
        raise InvalidInputError(
            f"two sources of the query {name!r} are in one group, which would give each a part of the topics: "
            "give each a group.id of its own"
        )


def _check_protocols(state: str | None, protocols: Sequence[str]) -> None:
    if "push" in protocols:
        raise InvalidInputError(
            "group.protocol=push has no place in a region: its members have no epoch to commit under; "
            "use consumer or classic"
        )
    if state == PINNED and any(protocol != "classic" for protocol in protocols):
        raise InvalidInputError(
            "state='pinned' needs group.protocol=classic: in the other the broker divides the partitions"
        )


def _check_pinned(name: str, state: str | None, queries: Sequence[str]) -> None:
    if state not in (None, PARTIAL, PINNED):
        raise InvalidInputError(f"state={state!r}: say 'partial' or 'pinned', or leave it out")
    if (state == PINNED) != bool(queries):
        raise InvalidInputError("state='pinned' and queries=[...], the names of all queries of the group, go together")
    if queries and (isinstance(queries, str) or name not in queries or len(set(queries)) < len(queries)):
        raise InvalidInputError(f"queries={queries!r} are names, each once, and {name!r} is one of them")


def _options(source: Source, servers: Servers, settings: Mapping[str, Any]) -> tuple[dict[str, str], SourceOptions]:
    raw = {key: str(value) for key, value in source.items()}
    for key in raw:
        if key.lower() in REFUSED:
            raise InvalidInputError(f"the option {key} has no place in a region: {REFUSED[key.lower()]}")
    for key, value in settings.items():
        if callable(value):
            raise InvalidInputError(
                f"{key} is a function, and can't be an option of a query's sources: give "
                "sasl_oauthbearer_token_url with a client's id and secret"
            )
    named = {f"kafka.{key}": value for key, value in by_property_name(ConnectionConfig, settings).items()}
    raw = {"kafka.bootstrap.servers": _addresses(servers)} | named | raw
    options = parse_options(raw, streaming=True)
    if not options.group_id:
        raise InvalidInputError("a query of a region is a member of a group: give its source the option group.id")
    return raw, options


def _undecoded_columns(raw: Mapping[str, str], options: SourceOptions) -> tuple[str, ...]:
    """Return the columns to pass to `build` from a source whose bad values become dead letters.

    Empty if they don't: the source has no typed values, or its own `onBadRecord`.
    """
    says = any(name.lower() == "onbadrecord" for name in raw)
    return () if says or options.value_format is None else column_names_of(options)


def _keeping_bad_values(
    raw: dict[str, str], options: SourceOptions, columns: tuple[str, ...]
) -> tuple[dict[str, str], SourceOptions]:
    """Return a source's options, changed so that records with bad values are delivered too, with value and reason.

    `columns` are those that the query needs; empty: nothing is changed.
    """
    if not columns:
        return raw, options
    rest = {name: value for name, value in raw.items() if name.lower() != "columns"}
    wanted = dict.fromkeys((*columns, *RECORD, BAD_VALUE, BAD_REASON))
    kept = rest | {"columns": ",".join(wanted), "onBadRecord": "column"}
    return kept, parse_options(kept, streaming=True)


def _addresses(servers: Servers) -> str:
    if servers is None:
        return "127.0.0.1:9092"
    return servers if isinstance(servers, str) else ",".join(map(str, servers))


def check_sink_takes_query(declared: DeclaredQuery, built: BuiltQuery) -> None:
    """Check that the sink takes rows as the query emits them.

    Raises:
        InvalidInputError: the query updates rows and the sink does not replace rows by keys, or a key is not a column.
    """
    sink = declared.into
    mode, keys = str(getattr(sink, "mode", "append")), tuple(getattr(sink, "keys", ()))
    if declared.mode == "update" and (mode != "update" or not keys):
        raise InvalidInputError(
            f"output_mode='update' gives rows that replace earlier ones, and {sink!r} adds rows: give a sink with "
            "mode='update' and keys=[...], the columns by which they do"
        )
    if missing := [key for key in keys if key not in built.schema.names]:
        raise InvalidInputError(
            f"{sink!r} replaces rows by {', '.join(keys)}, and the query {declared.name!r} gives no "
            f"{', '.join(missing)}: it gives {', '.join(built.schema.names)}"
        )


def check_runs_without_folder(declared: DeclaredQuery, built: BuiltQuery) -> None:
    """Check that a query needs no checkpoint folder that outlives its driver, for a region without one.

    Raises:
        InvalidInputError: the query keeps state, or reads sources outside the region.
    """
    if built.operators:
        raise InvalidInputError(
            f"the query {declared.name!r} keeps state ({', '.join(built.operators)}), and the region has no folder "
            "that outlives its driver: give SparkRegion(folder=...), local or mounted, that the query's next driver "
            "sees too; or leave the state to the sink, which replaces rows by keys with mode='update'"
        )
    if built.outside:
        raise InvalidInputError(
            f"the query {declared.name!r} also reads {', '.join(built.outside)}, whose position only its checkpoint "
            "has, and the region has no folder that outlives its driver: give SparkRegion(folder=...), local or "
            "mounted, that the query's next driver sees too; or bring those records into a topic"
        )


def check_can_share_group(declared: DeclaredQuery, built: BuiltQuery) -> bool:
    """Return whether other queries may be members of the query's group: it has no state, or `state` says how to share.

    State does not move with partitions.

    Raises:
        InvalidInputError: `state` is 'partial', and the results are not parts that can be added up.
    """
    if declared.state == PARTIAL and (built.watermark or set(built.operators) - {"aggregation"}):
        found = ", ".join(built.operators) + (" with a watermark" if built.watermark else "")
        raise InvalidInputError(
            f"state='partial' is for aggregations without a watermark, whose parts can be added up, not for {found}: "
            "rows of a partition that has moved are late, or miss their pairs; give the query a group of its own"
        )
    return not built.operators or declared.state is not None
