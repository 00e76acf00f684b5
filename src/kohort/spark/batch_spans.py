"""What a batch read covers: where it starts and ends in each partition, checked against what there is."""

from __future__ import annotations

from kohort.errors import InvalidInputError, NotFoundError, OffsetError
from kohort.ids import TopicPartition
from kohort.spark.batch_offset import BatchOffset, Span
from kohort.spark.bounds import Bound, refuse_not_read
from kohort.spark.catalog import Catalog
from kohort.spark.data_loss import lose


def batch_spans(catalog: Catalog, starting: Bound, ending: Bound, *, strict: bool) -> BatchOffset:
    """Everything between two bounds, with the ids of the topics.

    Args:
        catalog: of the read's options.
        starting: where it starts.
        ending: where it ends.
        strict: whether records that are gone are an error.

    Raises:
        InvalidInputError: offsets that are asked for lie beyond the end, or end before they start.
        OffsetError: the group's offset lies beyond the end; or records that are asked for are gone, if that is an
            error.
        NotFoundError: a topic was deleted meanwhile.
    """
    every = catalog.partitions()
    refuse_not_read("startingOffsets", starting, every)
    refuse_not_read("endingOffsets", ending, every)
    ids = catalog.present({tp.topic for tp in every}).ids
    starts, ends = catalog.resolve(starting, every), catalog.resolve(ending, every)
    first, last = catalog.beginnings(every), catalog.ends(every)
    spans: dict[TopicPartition, Span] = {}
    for tp in every:
        if not all(tp in found for found in (starts, ends, first, last)):
            raise NotFoundError(f"{tp} was deleted while the read was planned")
        start, end, held = starts[tp], ends[tp], f"{tp}, which holds offsets {first[tp]} to {last[tp]}"
        for name, bound, at in (("startingOffsets", starting, start), ("endingOffsets", ending, end)):
            if at > last[tp] and bound.kind == "committed":
                raise OffsetError(f"{name}: the group's offset {at} lies beyond the end of {held}")
            if at > last[tp]:
                raise InvalidInputError(f"{name} asks for offset {at} of {held}")
        if starting.kind == ending.kind == "offsets" and start > end:
            raise InvalidInputError(f"startingOffsets asks for {start} of {tp}, endingOffsets for {end}, which is less")
        if start < first[tp] < end:
            lose(f"offset {start} was asked for of {held}: records are gone", "passes over them", strict=strict)
        spans[tp] = Span(max(start, first[tp]), max(start, first[tp], end))
    return BatchOffset("", spans=spans, ids=ids)
