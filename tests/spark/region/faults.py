"""Faults planted in the place of a region's query, which its tests must see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kohort.client.admin.admin import Admin
from kohort.spark.source.batch_offset import BatchOffset
from kohort.spark.source.offset_coordinator import AssignedPartitions
from kohort.spark.source.region_offsets import RegionOffsets
from kohort.spark.source_sessions import AssignmentReply


def ignores_assignment_versions(self: RegionOffsets, handed: AssignmentReply, at: Any) -> None:
    known = self.__dict__.setdefault("_by_name", {})
    known.update({(tp.topic, tp.partition): position for tp, position in at.items()})
    self._reached = {
        part.assignment_version: known.get((part.topic, part.partition), part.start) for part in handed.parts
    }


def always_at_the_start(self: RegionOffsets, handed: AssignmentReply, at: Any) -> None:
    self._reached = {part.assignment_version: part.start for part in handed.parts}


def forgets_what_a_look_misses(self: RegionOffsets, handed: AssignmentReply, at: Any) -> None:
    reached = {part.assignment_version: at[tp] for tp, part in self._parts.items() if tp in at}
    self._reached = {part.assignment_version: reached.get(part.assignment_version, part.start) for part in handed.parts}


def commits(self: RegionOffsets, batch: BatchOffset, timeout_ms: float | None = None) -> None:
    with Admin(self._options.bootstrap_servers) as admin:
        admin.alter_consumer_group_offsets(str(self._options.group_id), batch.end_offsets()).all()
    FINISH(self, batch, timeout_ms)


FINISH, HOLD = RegionOffsets.finish_batch, RegionOffsets.wait_assigned_partitions


def no_assignment_versions(self: RegionOffsets, start: BatchOffset, at: Any) -> AssignedPartitions | None:
    held = HOLD(self, start, at)
    return held and replace(held, assignment_versions=dict.fromkeys(held.assignment_versions, 1))


def no_epoch(self: RegionOffsets, start: BatchOffset, at: Any) -> AssignedPartitions | None:
    held = HOLD(self, start, at)
    return held and replace(held, epoch=-1)


FAULTS: list[tuple[str, Callable[..., Any]]] = [
    ("_keep_positions", ignores_assignment_versions),
    ("_keep_positions", always_at_the_start),
    ("_keep_positions", forgets_what_a_look_misses),
    ("begin_batch", lambda self, held, batch: True),
    ("finish_batch", lambda self, batch, timeout_ms=None: None),
    ("finish_batch", commits),
    ("wait_assigned_partitions", no_assignment_versions),
    ("wait_assigned_partitions", no_epoch),
]
"""The method that each stands in for, and what it does."""
