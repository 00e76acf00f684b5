"""Where a query starts in partitions, and whether there are records where it means to go on."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping

from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.spark.batch_offset import Committed
from kohort.spark.bounds import Bound, refuse_not_read, starting_bound
from kohort.spark.catalog import Catalog
from kohort.spark.data_loss import lose
from kohort.spark.options import SourceOptions


def first_positions(
    partitions: Iterable[TopicPartition],
    catalog: Catalog,
    bound: Bound,
    *,
    again: Container[str],
    there: Collection[TopicPartition],
) -> dict[TopicPartition, int]:
    """Where partitions start that neither the group nor the checkpoint knows.

    Those that a fresh query finds start where the options say; later ones are new partitions, whose records are all
    new.

    Args:
        partitions: the unknown ones.
        catalog: asks the brokers.
        bound: where the options say that a query starts.
        again: topics that were deleted and made again.
        there: what a fresh query has found; nothing once it has had partitions.
    """
    wanted = list(partitions)
    new = [tp for tp in wanted if tp.topic in again or tp not in there]
    first = [tp for tp in wanted if tp not in set(new)]
    found = catalog.beginnings(new) if new else {}
    if not first:
        return found
    refuse_not_read("startingOffsets", bound, there)
    return found | (catalog.resolve(bound, first) if bound.kind != "committed" else catalog.without_commit(first))


def set_aside(options: SourceOptions, found: Mapping[TopicPartition, Committed | None]) -> str | None:
    """The note that a fresh query goes on at its group's offsets; None where there are none, or it asked for them.

    Args:
        options: of the query.
        found: the group's offsets, by each partition that the query holds.
    """
    bound = starting_bound(options, streaming=True)
    committed = sum(offset is not None for offset in found.values())
    if not committed or bound.kind == "committed":
        return None
    rest = "to none of them" if committed == len(found) else f"to the other {len(found) - committed} alone"
    topics = ", ".join(sorted({tp.topic for tp in found}))
    return (
        f"group {options.group_id} has committed offsets for {committed} of {len(found)} partitions of {topics}: "
        f"{_said_start(options)} applies {rest}. To read them again, use "
        f"a new group.id, or `kohort groups reset-offsets {options.group_id}` while the group has no members"
    )


def _said_start(options: SourceOptions) -> str:
    if options.starting_timestamp is not None:
        return f"startingTimestamp={options.starting_timestamp}"
    if options.starting_offsets_by_timestamp is not None:
        return "startingOffsetsByTimestamp"
    said = options.starting_offsets
    if said is None:
        return "startingOffsets=latest, the default,"
    return "startingOffsets" if said.lstrip().startswith("{") else f"startingOffsets={said}"


def refuse_beyond(
    first: Mapping[TopicPartition, int],
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
) -> None:
    """Nothing is claimed for a start that the partition does not reach.

    Raises:
        InvalidInputError: the options ask for it.
    """
    for tp, at in first.items():
        if at > ends[tp]:
            raise InvalidInputError(
                f"startingOffsets asks for offset {at} of {tp}, which holds offsets {beginnings[tp]} to {ends[tp]}"
            )


def within(
    positions: Mapping[TopicPartition, int],
    beginnings: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    catalog: Catalog,
    options: SourceOptions,
) -> dict[TopicPartition, int]:
    """Positions that lie where there are records; others mean that records are gone.

    Raises:
        OffsetError: records are gone, and that is to end the query.
    """
    settled = dict(positions)
    beyond = {tp: at for tp, at in positions.items() if tp in ends and at > ends[tp]}
    if beyond:
        ends = {tp: end for tp, end in ends.items() if tp not in beyond} | catalog.ends_beyond(beyond)
    for tp, at in positions.items():
        if tp not in ends or beginnings.get(tp, 0) <= at <= ends[tp]:
            continue
        first = beginnings.get(tp)
        if first is None:
            first = catalog.beginnings([tp]).get(tp, 0)
        text = f"{tp} holds offsets {first} to {ends[tp]}, the query was at {at}: records are gone"
        if options.group_id is not None:
            text = f"{text} (kohort groups reset-offsets sets the group's offset anew while the query is down)"
        lose(text, f"goes on at {first}", strict=options.fail_on_data_loss)
        settled[tp] = first
    return settled
