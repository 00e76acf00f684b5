"""Where a query starts in partitions, and whether there are records where it means to go on."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping

from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition
from kohort.spark.bounds import Bound
from kohort.spark.catalog import Catalog
from kohort.spark.data_loss import lose
from kohort.spark.options import SourceOptions


def first_positions(
    partitions: Iterable[TopicPartition],
    catalog: Catalog,
    bound: Bound,
    *,
    again: Container[str],
    there: Container[TopicPartition],
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
    return found | (catalog.resolve(bound, first) if bound.kind != "committed" else catalog.without_commit(first))


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
