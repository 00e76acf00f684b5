"""Calls about offsets that wait for brokers: one function for both faces of a consumer (`client.net.faces`)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kohort.client.consumer.core import ConsumerCore
from kohort.client.offset_requests import committed_offsets
from kohort.client.offset_values import OffsetAndMetadata
from kohort.errors import InvalidInputError
from kohort.ids import TopicPartition


async def commit(
    core: ConsumerCore,
    offsets: Mapping[TopicPartition, OffsetAndMetadata | int] | None = None,
    *,
    timeout_ms: float | None = None,
) -> None:
    """Commit and wait; None commits the positions: everything that was returned.

    Raises:
        CommitFailedError: this consumer is no member any more, its partitions may belong to another.
    """
    await core.commits.commit(core.to_commit(offsets), timeout_ms)


async def committed(
    core: ConsumerCore, partitions: Iterable[TopicPartition], *, timeout_ms: float | None = None
) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """The group's committed offsets, None where there is none."""
    group = core.config.group_id
    if group is None:
        raise InvalidInputError("committed needs group.id")
    return await committed_offsets(core.cluster, group, partitions, timeout_ms=timeout_ms)
