"""`kohort region`: list, describe, checkpoint, reset, stop-member, resume, adopt, files, compact, reseal, delete, …"""

from __future__ import annotations

import re
import signal
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kohort.cli.app import DONE, FAILED, UsageError, command_family
from kohort.cli.common import Common, MetricsOptions
from kohort.cli.output import is_confirmed, print_json, print_note, print_rows
from kohort.errors import InvalidInputError, NotFoundError
from kohort.ids import TopicPartition
from kohort.settings.config import did_you_mean

if TYPE_CHECKING:
    from kohort.client.admin.admin import Admin
    from kohort.region.messages import RegionStatus
    from kohort.region.region import Region
    from kohort.region.region_topic import SavedFacts
    from kohort.region.sinks import Sink


# -- Rows of `kohort region describe` that do not come from the control plane: Spark queries, and the lag of groups

OF_QUERY = ("region", "query", "batch", "epoch", "records", "reads", "state")
OF_GROUP = ("region", "group", "partitions", "lag", "unknown")
OF_STATE = ("region", "group", "keyed_states", "bytes", "largest")


def spark_query_rows(name: str, saved: SavedFacts) -> list[dict[str, Any]]:
    """Return an output row for each Spark query in the last complete checkpoint.

    Queries that were absent since, and whose saved state waits for their return, have a row too.
    """
    from kohort.spark.region.query_state import SavedQuery  # needs no Spark

    given = saved.contributions.get(saved.last_complete_sequence, {})
    rows = []
    for member, state in sorted(saved.application_states().items()):
        try:
            query = SavedQuery.from_bytes(state)
        except InvalidInputError:
            continue  # a member of another kind
        spans = given[member].spans if member in given else ()
        rows.append(
            {
                "region": name,
                "query": member,
                "batch": query.batch,
                "epoch": query.epoch,
                "records": sum(span.end - span.begin for span in spans),
                "reads": list(query.sources),
                "state": list(query.operators),
            }
        )
    return rows


def lag_rows(admin: Admin, seen: RegionStatus) -> list[dict[str, Any]]:
    """Return an output row for each group: how many records no complete checkpoint of the region contains yet.

    Raises:
        KafkaError: the partitions' end offsets are not available.
    """
    reached: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
    for position in seen.positions:
        reached[position.group][TopicPartition(position.topic, position.partition)] = position.offset
    every = {partition for offsets in reached.values() for partition in offsets}
    ends = admin.list_offsets(dict.fromkeys(sorted(every), "latest"))
    rows = []
    for group, offsets in sorted(reached.items()):
        known = {at: ends.result(at).offset for at in offsets if at not in ends.errors}
        rows.append(
            {
                "region": seen.name,
                "group": group,
                "partitions": len(offsets),
                "lag": sum(max(0, end - offsets[at]) for at, end in known.items()),
                "unknown": [str(at) for at in sorted(offsets) if at not in known],
            }
        )
    return rows


app = command_family("region", "Consistent regions: how they are, and what a person can have them do.")

_COMMON = Common()
_METRICS = MetricsOptions()
_OF_REGION = ("region", "state", "term", "epoch", "sequence", "published", "groups")
_OF_MEMBER = (
    "region", "member", "group", "phase", "epoch", "partitions", "connected", "sink", "dead_letters", "waits_for",
)  # fmt: skip
_OF_SINK = ("region", "sink", "published", "unpublished", "publisher", "waits_for")
_OF_ADOPTED = ("region", "sink", "says")


@app.command(name="list")
def list_(*, common: Common = _COMMON) -> int:
    """List the regions with their groups and the last sequence that is complete."""
    from kohort.region.description import region_list_rows
    from kohort.region.region_log import read_regions

    rows = region_list_rows(read_regions(*_reached(common)))
    print_rows(
        rows, ("region", "term", "epoch", "sequence", "stopped", "groups"), as_json=common.json, empty="no regions"
    )
    return DONE


@app.command
def describe(name: str, *, common: Common = _COMMON) -> int:
    """Describe a region: its state, its members with their partitions, its sinks, and how much it has read.

    For each Spark query it shows the last batch of the last complete sequence and the epoch of that batch. It also
    shows the query's records in the sequence. For each group it shows the records that no sequence contains yet, and
    how large its keyed states are.

    Args:
        name: the region's name.
    """
    from kohort.client.admin.admin import Admin
    from kohort.region.description import keyed_state_rows, member_row, region_row, region_view, sink_row

    servers, settings = _reached(common)
    with _region(name, common) as region:
        saved = _must_be_there(name, common)
        seen = region.describe()
        with Admin(servers, **settings) as admin:
            lag = lag_rows(admin, seen)
    queries = spark_query_rows(name, saved)
    if common.json:
        print_json({**region_view(seen), "queries": queries, "lag": lag})
        return DONE
    print_rows([region_row(seen)], (*_OF_REGION[:-1], "unpublished", "resets", "sequence_ms", "stopped"), as_json=False)
    print_rows([member_row(seen, member) for member in seen.members], _OF_MEMBER, as_json=False, empty="no members")
    if queries:
        print_rows(queries, OF_QUERY, as_json=False)
    print_rows([sink_row(seen, sink) for sink in seen.sinks], _OF_SINK, as_json=False, empty="no sinks")
    if lag:
        print_rows(lag, OF_GROUP, as_json=False)
    if states := keyed_state_rows(seen):
        print_rows(states, OF_STATE, as_json=False)
    return DONE


@app.command
def checkpoint(name: str, *, execute: bool = False, common: Common = _COMMON) -> int:
    """Begin a sequence: all members drain and contribute.

    Args:
        name: the region's name.
        execute: Do it; without this it is only shown.
    """
    return _change(name, common, f"Have region {name} begin a sequence?", execute, lambda region: region.checkpoint())


@app.command
def reset(
    name: str,
    *,
    to_initial: bool = False,
    empty_sinks: bool = False,
    execute: bool = False,
    common: Common = _COMMON,
) -> int:
    """Reset all members to the last complete sequence.

    Args:
        name: the region's name.
        to_initial: Reset to the region's beginning: everything is read again.
        empty_sinks: Delete everything that was published from its sinks, for ever; needed with --to-initial after the
            first sequence.
        execute: Do it; without this it is only shown.
    """
    where = "where it began, emptying its sinks" if to_initial else "its last complete sequence"
    return _change(
        name,
        common,
        f"Have all members of region {name} go back to {where}?",
        execute,
        lambda region: region.reset(to_initial=to_initial, empty_sinks=empty_sinks),
    )


@app.command(name="stop-member")
def stop_member(name: str, member: str, *, execute: bool = False, common: Common = _COMMON) -> int:
    """Make a member leave with the next complete sequence.

    When the command succeeds, the region's topic records it, and a later control plane knows of it. A member that is
    started under that name again stays.

    Args:
        name: the region's name.
        member: the member's name.
        execute: Do it; without this it is only shown.
    """
    return _change(
        name,
        common,
        f"Have {member} leave region {name}?",
        execute,
        lambda region: region.stop_member(member),
        lambda seen: _must_be_member(seen, member),
    )


@app.command
def resume(name: str, *, execute: bool = False, common: Common = _COMMON) -> int:
    """Resume a stopped region when the cause is mended, even if no application serves it any more.

    Args:
        name: the region's name.
        execute: Do it; without this it is only shown.
    """
    return _change(name, common, f"Let region {name} go on?", execute, lambda region: region.resume(), serves=True)


@app.command
def adopt(name: str, place: str, *, execute: bool = False, common: Common = _COMMON) -> int:
    """Continue from the state of a sink that disagrees with the region's topic, or that has another name now.

    They disagree when the topic or the sink was restored from an older copy, or the sink was removed or has moved.
    Nobody may serve the region. If the sink is ahead, the region continues with its number. If it is behind, the rows
    that it lacks stay missing. `kohort region reset NAME --to-initial --empty-sinks` after that reads everything again.

    Args:
        name: the region's name.
        place: the sink's, as messages and `describe` name it: parquet:/folder, parquet:s3://bucket/folder,
            delta:/folder, delta:s3://bucket/table, sql:URL#table. For a sink of your own, call `Region.adopt` instead.
        execute: Do it; without this it is only shown.
    """
    from kohort.region.sinks.by_name import sink_of

    _must_be_there(name, common)
    sink = sink_of(place)
    with _region(name, common) as region:
        if region.is_served():
            raise UsageError(f"region {name} has a control plane: end its applications first")
        if not execute:
            print_rows(
                [{"region": name, "sink": place, "says": _compared(region, sink)}], _OF_ADOPTED, as_json=common.json
            )
        if not is_confirmed(execute, f"Have region {name} go on from what {place} shows?"):
            return FAILED
        region.adopt(sink)
    print_rows([{"region": name, "sink": place, "done": True}], ("region", "sink", "done"), as_json=common.json)
    return DONE


@app.command(name="files")
def published_files(place: str, *, after: int = 0, json: bool = False) -> int:
    """List the files of a ParquetFolder that belong to published sequences. No broker is asked.

    Readers of an object store take these files; the others there are not published yet, or will never be. Credentials
    come from the environment, as AWS_ACCESS_KEY_ID does.

    Args:
        place: the folder's path, or its URL, or its name in `kohort region describe`.
        after: Leave out this sequence and earlier ones.
        json: Print JSON.
    """
    from kohort.region.sinks.by_name import parquet_folder_from_name

    _must_be_folder(place)
    found = parquet_folder_from_name(place.removeprefix("parquet:")).published_files(after)
    print_rows([file._asdict() for file in found], ("sequence", "path"), as_json=json, empty="no published sequences")
    return DONE


@app.command
def compact(
    place: str,
    *,
    target_file_size: str = "128MB",
    grace: str = "15m",
    until: int | None = None,
    execute: bool = False,
    json: bool = False,
) -> int:
    """Merge the small published files of a ParquetFolder into large ones. No broker is asked.

    Members may write meanwhile, and others may compact. Readers that take the listed files see the old ones or the new
    ones. Each call also removes what an earlier one has replaced, once its grace time is over. Credentials come from
    the environment, as AWS_ACCESS_KEY_ID does.

    Args:
        place: the folder's path, or its URL, or its name in `kohort region describe`.
        target_file_size: The size to aim at, such as 128MB; files of half that size are left as they are.
        grace: How long replaced files stay for readers that took the list before.
        until: The last sequence that is merged; for readers that go on with `--after`.
        execute: Do it; without this the number of files is only shown.
        json: Print JSON.
    """
    from kohort.region.sinks.by_name import parquet_folder_from_name

    _must_be_folder(place)
    folder = parquet_folder_from_name(place.removeprefix("parquet:"))
    size = _bytes_of(target_file_size)
    if not execute:
        row = {"place": place, "files": len(folder.published_files())}
        print_rows([row], ("place", "files"), as_json=json)
    if not is_confirmed(execute, f"Merge the small files of {place}?"):
        return FAILED
    result = folder.compact(target_file_size=size, grace=grace, until=until)
    print_rows([{"place": place, **result._asdict()}], ("place", *result._fields), as_json=json)
    return DONE


def _must_be_folder(place: str) -> None:
    """Raise an error if a local path is no folder: a missing folder would list no files, as an empty one does."""
    path = place.removeprefix("parquet:")
    if "://" not in path and not Path(path).is_dir():
        raise NotFoundError(f"there is no folder {path}")


_SIZE: Final = re.compile(r"([0-9]+)\s*(B|KB|MB|GB|)", re.IGNORECASE)


def _bytes_of(text: str) -> int:
    """Parse a size such as 128MB, and return it in bytes; 1 KB is 1,024 bytes.

    Raises:
        UsageError: the text is no size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"--target-file-size must be a size like 128MB, not {text!r}")
    return int(found[1]) << {"B": 0, "": 0, "KB": 10, "MB": 20, "GB": 30}[found[2].upper()]


def _compared(region: Region, sink: Sink) -> str:
    try:
        return region.compared(sink) or "agrees with the region's topic: nothing is to be adopted"
    except InvalidInputError as error:  # the sink has another name now
        return error.message


@app.command
def reseal(name: str, *, execute: bool = False, common: Common = _COMMON) -> int:
    """Trust a region's records, whichever key sealed them, and seal them with the key of this process.

    For a key that was lost or replaced, as when a region moves from one machine to several. Nobody may serve the
    region. Everyone who may write to the topic in a transaction could have written the records: look at `describe`
    after it.

    Args:
        name: the region's name.
        execute: Do it; without this it is only shown.
    """
    _must_be_there(name, common)
    with _region(name, common) as region:
        if not _agreed(
            region, f"Trust all records of region {name}, and seal them with this process's key?", execute, common
        ):
            return FAILED
        records = region.reseal()
    print_rows([{"region": name, "records": records, "done": True}], ("region", "records", "done"), as_json=common.json)
    return DONE


def _agreed(region: Region, question: str, execute: bool, common: Common) -> bool:
    """Return whether to make a change of a region that no process serves; without `execute`, preview and ask.

    Raises:
        UsageError: a process serves the region.
    """
    _refuse_served(region)
    if not execute:
        print_rows([{"region": region.name}], ("region",), as_json=common.json)
    return is_confirmed(execute, question)


def _refuse_served(region: Region) -> None:
    """Raise an error if a control plane serves the region.

    One with another key can't be seen here, but it can't write after the change.
    """
    try:
        served = region.is_served()
    except InvalidInputError as error:
        print_note(error.message)
        return
    if served:
        raise UsageError(f"region {region.name} has a control plane: end its applications first")


@app.command
def delete(name: str, *, keyed_state: str = "", execute: bool = False, common: Common = _COMMON) -> int:
    """Delete a region that nobody serves: its sequences, and its claims of groups. The data in its sinks stays.

    So do keyed states, unless their place is given; a note names their folder.

    Args:
        name: the region's name.
        keyed_state: The folder or URL that members gave to KeyedState: the region's states are removed from it too.
            Credentials come from the environment, as AWS_ACCESS_KEY_ID does.
        execute: Do it; without this it is only shown.
    """
    from kohort.region.keyed_state.place import KeyedState

    _must_be_there(name, common)
    states = KeyedState(keyed_state) if keyed_state else None
    with _region(name, common) as region:
        if not _agreed(region, f"Delete region {name}?", execute, common):
            return FAILED
        folder = region.delete()
    row: dict[str, Any] = {"region": name, "done": True}
    if folder and states is not None:
        row["state_files_removed"] = states.remove_region(folder)
        if not row["state_files_removed"]:
            print_note(f"{keyed_state} has no folder {folder}: remove it where the members saved their keyed states")
    elif folder:
        print_note(f"the keyed states stay: remove the folder {folder} where its members saved them")
    print_rows([row], tuple(row), as_json=common.json)
    return DONE


@app.command
def serve(
    name: str,
    *,
    checkpoint_every: str = "5s",
    host: str = "127.0.0.1",
    metrics: MetricsOptions = _METRICS,
    common: Common = _COMMON,
) -> int:
    """Run a region's control plane, until SIGTERM, Ctrl-C, or another takes over.

    Prints the line `ready TERM` when it has taken over.

    Args:
        name: the region's name.
        checkpoint_every: How often a sequence begins, as 5s or 500ms; `never`: only on request.
        host: The host name to listen on, by which other machines reach it.
    """
    metrics.check(f"metrics listener of region {name}")
    options: dict[str, Any] = {"host": host, "serves": True, **asdict(metrics)}
    options["checkpoint_every"] = None if checkpoint_every == "never" else checkpoint_every
    with _region(name, common, **options) as region:
        ended = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: ended.set())
        plane = region.serve()
        print(f"ready {plane.term}", flush=True)
        if region.metrics_address is not None:
            scheme = "http" if metrics.metrics_tls is None else "https"
            print_note(f"metrics on {scheme}://{region.metrics_address}/metrics")
        while not ended.is_set() and not region.wait_until_replaced(0.2):
            pass
        if not ended.is_set():
            print_note(f"region {name}: another control plane has taken over")
    return DONE


# -- helpers of the commands


def _reached(common: Common) -> tuple[str, dict[str, Any]]:
    from kohort.client.settings import ConnectionConfig

    common.check_reachable()
    return common.client_settings(ConnectionConfig)


def _region(name: str, common: Common, **options: Any) -> Region:
    from kohort.region.region import Region

    servers, settings = _reached(common)
    try:
        return Region(name, servers, **{"serves": False, **options, **settings})
    except InvalidInputError as error:
        raise UsageError(error.message) from error


def _must_be_there(name: str, common: Common) -> SavedFacts:
    from kohort.region.region_log import read_regions

    known = read_regions(*_reached(common))
    if name not in known:
        raise NotFoundError(f"there is no region {name!r}{did_you_mean(name, known)}")
    return known[name][0]


def _must_be_member(seen: RegionStatus, member: str) -> None:
    names = [member.name for member in seen.members]
    if member not in names:
        raise NotFoundError(f"region {seen.name} has no member {member!r}{did_you_mean(member, names)}")
    if any(waiting.name == member and not waiting.registered for waiting in seen.members):
        raise InvalidInputError(
            f"{member} has not registered with region {seen.name} yet, for its sink does not answer: end its process"
        )


def _change(
    name: str,
    common: Common,
    question: str,
    execute: bool,
    do: Callable[[Region], None],
    check: Callable[[RegionStatus], None] = lambda seen: None,
    *,
    serves: bool = False,
) -> int:
    """Preview and make a change through the region's control plane.

    With `serves`, this command runs the control plane meanwhile if there is none.
    """
    from kohort.region.description import region_row

    _must_be_there(name, common)
    with _region(name, common, serves=serves) as region:
        seen = region.describe()
        check(seen)
        columns = (*_OF_REGION[:-1], "stopped")
        if not execute:
            print_rows([region_row(seen)], columns, as_json=common.json)
        if not is_confirmed(execute, question):
            return FAILED
        do(region)
        print_rows([{**region_row(region.describe()), "done": True}], (*columns, "done"), as_json=common.json)
    return DONE
