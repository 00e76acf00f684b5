"""Offsets within transactions, and regions, whose commit point they are, are refused by coordinators over Kafka."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kohort.broker.routes import GROUP_ROUTES
from kohort.errors import InvalidInputError
from kohort.region import Region
from kohort.region.region_topic import ensure_regions_topic
from tests.broker.storeless import TOPIC, Coordinators


@pytest.fixture
def coordinators(tmp_path: Path) -> Iterator[Coordinators]:
    with Coordinators(tmp_path) as both:
        for number, host in enumerate(both.hosts):
            host.coordinator_id = 100 + number
        yield both


def test_a_region_is_refused_before_anything_is_made(coordinators: Coordinators) -> None:
    region = Region("r", coordinators.address())
    try:
        with pytest.raises(InvalidInputError, match="kohort's coordinators keep the groups"):
            region.consumer("one", group_id="g", topics=[TOPIC])
        with pytest.raises(InvalidInputError, match="own brokers"):
            region.describe()
    finally:
        region.close()
    with pytest.raises(InvalidInputError):
        ensure_regions_topic(coordinators.address(), {})


def test_offsets_in_transactions_are_not_offered() -> None:
    add_offsets_to_txn, txn_offset_commit = 25, 28
    assert not {add_offsets_to_txn, txn_offset_commit} & GROUP_ROUTES.keys()
